/*---
metric: ccl_average_memory_bandwidth
version: 1
status: compatibility
unit: GB/s
polarity: higher_is_better
grain: [run_id]
value: bandwidth_gbps
requires: SELECT run_id FROM main.instructions WHERE opcode = 'copy-start' AND bytes_accessed > 0
description: >
  Reproduces CCL-Bench's average_memory_bandwidth with its faults, to explain a published number; use copy_bandwidth
  instead. Bytes of copies over the time from the start of the start half to the start of the done half, on the device's
  own clock. Halves are paired by the number in their names alone, without regard to the device: here the k-th start of a
  name with the k-th done of it over all devices, so that halves of different devices make a pair where these differ in
  pace.
changed: First version.
ccl_bench: average_memory_bandwidth
---*/
WITH halves AS (
  SELECT
    run_id,
    i.opcode,
    CASE WHEN i.opcode = 'copy-done' THEN i.async_start ELSE i.name END AS start_name,
    o.device_offset_ps AS offset_ps,
    i.bytes_accessed AS bytes,
    ROW_NUMBER() OVER (
      PARTITION BY run_id, i.opcode, CASE WHEN i.opcode = 'copy-done' THEN i.async_start ELSE i.name END
      ORDER BY o.start_ps, o.event_id
    ) AS place
  FROM main.ops AS o
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  INNER JOIN main.devices AS d USING (run_id, device_id)
  WHERE
    d.backend = 'tpu' AND o.line <> 'Async XLA Ops' AND i.opcode IN ('copy-start', 'copy-done')
    AND o.device_offset_ps IS NOT NULL
)

SELECT
  run_id, -- The run.
  SUM(s.bytes) * 1000 / SUM(e.offset_ps - s.offset_ps) AS bandwidth_gbps, -- Bytes over time.
  COUNT(*) AS copies, -- Pairs that it covers.
  CAST(SUM(s.bytes) AS BIGINT) AS bytes -- Memory traffic of the starts.
FROM halves AS s
INNER JOIN halves AS e USING (run_id, start_name, place)
WHERE s.opcode = 'copy-start' AND e.opcode = 'copy-done' AND s.bytes > 0
GROUP BY run_id
HAVING SUM(e.offset_ps - s.offset_ps) > 0
