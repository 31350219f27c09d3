/*---
status: stable
unit: GB/s
polarity: higher_is_better
grain: [run_id, device_id, kind]
value: copy_gbps
needs: [async_copy_bytes]
description: >
  Bytes of asynchronous copies over their windows, in decimal GB. A window lasts from the start of the start half to
  the end of the done half on the same device.
notes: >
  A row divides the sum of its bytes by the sum of its time. Bytes are the profiler's bytes_accessed of the start; for
  a TPU's copy-start these are the bytes of the copied array, once. Each of several overlapping windows counts, and a
  window may outlast its transfer, so the value is a lower bound of what a copy alone reaches.
ccl_bench: average_memory_bandwidth
---*/
SELECT
  run_id, device_id,
  kind, -- copy for copy-start and copy-done, async for other asynchronous ops except collectives.
  SUM(bytes) * 1000 / SUM(end_ps - start_ps) AS copy_gbps, -- Bytes over time.
  COUNT(*) AS copies, -- Number of copies of known size.
  CAST(SUM(bytes) AS BIGINT) AS bytes, -- Bytes of all copies.
  SUM(end_ps - start_ps) / 1e9 AS window_ms -- Time of their windows together.
FROM models.copy_windows
WHERE is_async AND bytes > 0
GROUP BY run_id, device_id, kind
HAVING SUM(end_ps - start_ps) > 0
