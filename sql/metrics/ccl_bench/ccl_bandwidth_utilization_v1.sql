/*---
metric: ccl_bandwidth_utilization
version: 1
status: compatibility
unit: GB/s
polarity: higher_is_better
grain: [run_id, kind]
value: bandwidth
requires: SELECT run_id FROM models.ccl_events WHERE category IN ('all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter', 'collective-permute')
description: >
  Reproduces CCL-Bench's bandwidth_utilization_* with its faults, to explain a published number; use
  collective_transfer instead. Median over events of bytes_accessed / 2^30 x f / duration, f = 2 (n-1)/n for all-reduce
  and (n-1)/n else. bytes_accessed is memory traffic, about twice the message; n is the number of devices in the
  capture, not of a group; the unit is GiB/s though it is called GB/s; waiting for late ranks counts as transfer.
changed: First version.
ccl_bench: bandwidth_utilization
---*/
WITH processes AS (
  SELECT run_id, COUNT(DISTINCT device_id) AS devices
  FROM models.ccl_events
  GROUP BY run_id
),

rated AS (
  SELECT
    run_id,
    e.event_id,
    e.category AS kind,
    p.devices,
    CASE WHEN e.category = 'all-reduce' THEN 2 ELSE 1 END * (p.devices - 1) * e.bytes_accessed
    / (p.devices * e.duration_ps) AS bytes_per_ps
  FROM models.ccl_events AS e
  INNER JOIN processes AS p USING (run_id)
  WHERE
    e.bytes_accessed IS NOT NULL AND e.duration_ps > 0
    AND e.category IN ('all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter', 'collective-permute')
),

ranked AS (
  SELECT
    run_id,
    kind,
    devices,
    bytes_per_ps,
    ROW_NUMBER() OVER (PARTITION BY run_id, kind ORDER BY bytes_per_ps, event_id) AS place,
    COUNT(*) OVER (PARTITION BY run_id, kind) AS places
  FROM rated
)

SELECT
  run_id, -- The run.
  kind, -- The category.
  (
    MAX(bytes_per_ps) FILTER (WHERE place = (places + 1) // 2)
    + MAX(bytes_per_ps) FILTER (WHERE place = places // 2 + 1)
  )
  * (5e11 / 1073741824) AS bandwidth, -- Median, in GiB/s.
  COUNT(*) AS events, -- Events that it covers.
  MIN(devices) AS devices -- Devices with events, taken for the group.
FROM ranked
GROUP BY run_id, kind
