/*---
metric: ccl_collective_vol
version: 1
status: deprecated
unit: GB
polarity: lower_is_better
grain: [run_id, kind]
value: volume_gb
requires: SELECT e.run_id FROM models.ccl_events AS e WHERE e.category IN ('all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter', 'collective-permute')
description: >
  Reproduces CCL-Bench's collective_vol_*_gb with its faults, to explain a published number; use traffic_volume instead.
  The profiler's bytes_accessed of events whose category is exactly a collective's, over all devices and the whole
  capture: memory traffic, which for an all-reduce is twice the message and more, not what goes over links.
columns:
  run_id: The run.
  kind: The category.
  volume_gb: Memory traffic in decimal GB.
  events: Events that it covers.
changed: First version.
deprecated: Only explains numbers that CCL-Bench published; use traffic_volume instead.
ccl_bench: collective_vol
---*/
SELECT
  e.run_id AS run_id,
  e.category AS kind,
  CAST(SUM(e.bytes_accessed) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS volume_gb,
  COUNT(*) AS events
FROM models.ccl_events AS e
WHERE
  e.bytes_accessed IS NOT NULL
  AND e.category IN ('all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter', 'collective-permute')
GROUP BY e.run_id, e.category
