/*---
metric: ccl_bandwidth_utilization
version: 1
status: deprecated
unit: GB/s
polarity: higher_is_better
grain: [run_id, kind]
value: bandwidth
requires: SELECT e.run_id FROM models.ccl_events AS e WHERE e.category IN ('all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter', 'collective-permute')
description: >
  Reproduces CCL-Bench's bandwidth_utilization_* with its faults, to explain a published number; use
  collective_bandwidth instead. Median over events of bytes_accessed / 2^30 x f / duration, f = 2 (n-1)/n for all-reduce
  and (n-1)/n else. bytes_accessed is memory traffic, about twice the message; n is the number of devices in the
  capture, not of a group; the unit is GiB/s though it is called GB/s; waiting for late ranks counts as transfer.
columns:
  run_id: The run.
  kind: The category.
  bandwidth: Median, in GiB/s.
  events: Events that it covers.
  devices: Devices with events, taken for the group.
changed: First version.
deprecated: Only explains numbers that CCL-Bench published; use collective_bandwidth instead.
ccl_bench: bandwidth_utilization
---*/
WITH processes AS (
  SELECT
    p.run_id AS run_id,
    COUNT(DISTINCT p.device_id) AS devices
  FROM models.ccl_events AS p
  GROUP BY p.run_id
),

rated AS (
  SELECT
    e.run_id AS run_id,
    e.event_id AS event_id,
    e.category AS kind,
    p.devices AS devices,
    CAST(
      CASE WHEN e.category = 'all-reduce' THEN 2 ELSE 1 END * (p.devices - 1) * e.bytes_accessed AS DOUBLE
    ) / CAST(p.devices * e.duration_ps AS DOUBLE) AS bytes_per_ps
  FROM models.ccl_events AS e
  INNER JOIN processes AS p ON e.run_id = p.run_id
  WHERE
    e.bytes_accessed IS NOT NULL
    AND e.duration_ps > 0
    AND e.category IN ('all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter', 'collective-permute')
),

ranked AS (
  SELECT
    r.run_id AS run_id,
    r.kind AS kind,
    r.devices AS devices,
    r.bytes_per_ps AS bytes_per_ps,
    ROW_NUMBER() OVER (PARTITION BY r.run_id, r.kind ORDER BY r.bytes_per_ps, r.event_id) AS place,
    COUNT(*) OVER (PARTITION BY r.run_id, r.kind) AS places
  FROM rated AS r
)

SELECT
  m.run_id AS run_id,
  m.kind AS kind,
  CAST(
    MAX(CASE WHEN m.place = (m.places + 1) // 2 THEN m.bytes_per_ps ELSE NULL END)
    + MAX(CASE WHEN m.place = m.places // 2 + 1 THEN m.bytes_per_ps ELSE NULL END) AS DOUBLE
  ) * CAST(CAST(500000000000 AS DOUBLE) / CAST(1073741824 AS DOUBLE) AS DOUBLE) AS bandwidth,
  COUNT(*) AS events,
  MIN(m.devices) AS devices
FROM ranked AS m
GROUP BY m.run_id, m.kind
