/*---
metric: ccl_average_memory_bandwidth
version: 1
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
  device's own clock. It pairs halves by the number in their names alone, in file order and whatever the device.
  Halves without a number are left out.
changed: First version.
ccl_bench: average_memory_bandwidth
---*/
SELECT
  run_id,
  SUM(bytes) * 1000 / SUM(end_offset_ps - start_offset_ps) AS bandwidth_gbps, -- Bytes over time.
  COUNT(*) AS copies, -- Pairs covered.
  CAST(SUM(bytes) AS BIGINT) AS bytes -- Memory traffic of the starts.
FROM models.ccl_copies
WHERE purpose = 'bandwidth' AND bytes > 0
GROUP BY run_id
