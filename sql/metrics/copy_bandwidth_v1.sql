/*---
metric: copy_bandwidth
version: 1
status: stable
unit: GB/s
polarity: higher_is_better
grain: [run_id, device_id, kind]
value: copy_gbps
requires: SELECT w.run_id FROM models.copy_windows AS w WHERE w.is_async AND w.bytes > 0
description: >
  Bytes of asynchronous copies over their windows, each from the start of the start half to the end of its done half on
  the same device: all bytes of a row over all its time, in decimal GB. Bytes are the profiler's bytes_accessed of the
  start, which for a TPU's copy-start are those of the copied array, once. Windows that overlap count each, and one may
  outlast its transfer, so that this is a lower bound of what a copy alone reaches.
columns:
  run_id: The run.
  device_id: The device.
  kind: copy for copy-start and copy-done, async for other asynchronous ops that are no collectives.
  copy_gbps: Bytes over time.
  copies: Number of copies of known size.
  bytes: Bytes of all copies.
  window_ms: Time of their windows together.
changed: First version.
ccl_bench: average_memory_bandwidth
---*/
SELECT
  w.run_id AS run_id,
  w.device_id AS device_id,
  w.kind AS kind,
  CAST(SUM(w.bytes) * 1000 AS DOUBLE) / CAST(SUM(w.end_ps - w.start_ps) AS DOUBLE) AS copy_gbps,
  COUNT(*) AS copies,
  CAST(SUM(w.bytes) AS BIGINT) AS bytes,
  CAST(SUM(w.end_ps - w.start_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS window_ms
FROM models.copy_windows AS w
WHERE w.is_async AND w.bytes > 0
GROUP BY w.run_id, w.device_id, w.kind
HAVING SUM(w.end_ps - w.start_ps) > 0
