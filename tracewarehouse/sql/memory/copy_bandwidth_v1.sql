/*---
status: stable
unit: GB/s
polarity: higher_is_better
grain: [run_id, device_id, kind]
value: copy_gbps
needs: [copy_bytes]
description: >
  Bytes of copies over their windows, in decimal GB. An asynchronous copy of a program lasts from the start of its start
  half to the end of its done half on the same device. A copy by the driver of a GPU lasts as long as its op.
notes: >
  A row divides the sum of its bytes by the sum of its time. Bytes are those that a GPU's event states, or the
  profiler's bytes_accessed of the start. Both are the bytes of the copied array, once. Memory on one device is read and
  written, so its traffic is twice as large. Each of several overlapping windows counts. The window of a start and its
  done may outlast the transfer, so the value is a lower bound of what such a copy alone reaches.
ccl_bench: average_memory_bandwidth
---*/
WITH moved AS (
  SELECT
    run_id, device_id, kind, bytes, end_ps - start_ps AS window_ps,
    CUME_DIST() OVER (PARTITION BY run_id, device_id, kind ORDER BY bytes / (end_ps - start_ps)) AS quantile
  FROM models.copy_windows
  WHERE (is_async OR kind NOT IN ('copy', 'async')) AND bytes > 0 AND end_ps > start_ps
)

SELECT
  run_id, device_id,
  -- copy for copy-start and copy-done, async for other asynchronous ops except collectives. Of copies by a driver the
  -- direction: host_to_device, device_to_host, device_to_device, peer_to_peer or other.
  kind,
  SUM(bytes) * 1000 / SUM(window_ps) AS copy_gbps, -- Bytes over time.
  MIN(bytes * 1000 / window_ps) FILTER (WHERE quantile >= 0.5) AS median_gbps, -- Median of the copies, by nearest rank.
  COUNT(*) AS copies, -- Number of copies of known size.
  CAST(SUM(bytes) AS BIGINT) AS bytes, -- Bytes of all copies.
  SUM(window_ps) / 1e9 AS window_ms -- Time of their windows together.
FROM moved
GROUP BY run_id, device_id, kind
