/*---
status: compatibility
unit: GB/s
polarity: higher_is_better
grain: [run_id]
value: bandwidth_gbps
description: >
  Reproduces CCL-Bench's average_memory_bandwidth with its faults, to explain a published number; use copy_bandwidth
  instead.
notes: >
  It divides the bytes of copies by the time from the start of the start half to the start of the done half, on the
  device's own clock. It pairs halves by the number in their names alone, in file order and whatever the device. Halves
  without a number are left out. In Kineto traces it divides the bytes of all copies and sets, and of host calls that
  state bytes, by their duration. It ignores between which memories a copy moves. Exports of Nsight Systems are read
  alike, without the sets.
ccl_bench: average_memory_bandwidth
---*/
WITH moved AS (
  SELECT run_id, event_id, MAX(COALESCE(int_value, CAST(FLOOR(double_value + 5e-1) AS BIGINT))) AS bytes
  FROM main.event_stats
  WHERE name = 'bytes'
  GROUP BY run_id, event_id
),

on_gpus AS (
  SELECT run_id, o.event_id, o.duration_ps
  FROM main.runs AS r
  INNER JOIN main.ops AS o USING (run_id)
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  WHERE
    r.format IN ('kineto', 'nsys') AND o.line LIKE 'Stream #%'
    AND (i.name LIKE 'Memcpy%' OR (i.name LIKE 'Memset%' AND r.format = 'kineto'))
  UNION ALL
  SELECT run_id, e.event_id, e.duration_ps
  FROM main.runs AS r
  INNER JOIN main.host_events AS e USING (run_id)
  WHERE r.format = 'kineto' AND REGEXP_MATCHES(LOWER(e.name), 'memcpy|memset')
)

SELECT
  run_id,
  SUM(bytes) * 1000 / SUM(end_offset_ps - start_offset_ps) AS bandwidth_gbps, -- Bytes over time.
  COUNT(*) AS copies, -- Pairs covered.
  CAST(SUM(bytes) AS BIGINT) AS bytes -- Memory traffic of the starts.
FROM models.ccl_copies
WHERE purpose = 'bandwidth' AND bytes > 0
GROUP BY run_id
UNION ALL
SELECT
  run_id,
  SUM(m.bytes) * 1000 / SUM(e.duration_ps) AS bandwidth_gbps,
  COUNT(*) AS copies,
  CAST(SUM(m.bytes) AS BIGINT) AS bytes
FROM on_gpus AS e
INNER JOIN moved AS m USING (run_id, event_id)
WHERE m.bytes > 0 AND e.duration_ps > 0
GROUP BY run_id
