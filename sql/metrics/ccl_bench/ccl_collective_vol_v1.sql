/*---
metric: ccl_collective_vol
version: 1
status: compatibility
unit: GB
polarity: lower_is_better
grain: [run_id, kind]
value: volume_gb
requires: SELECT run_id FROM models.ccl_events WHERE category IN ('all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter', 'collective-permute')
description: >
  Reproduces CCL-Bench's collective_vol_*_gb with its faults, to explain a published number; use traffic_volume instead.
  The profiler's bytes_accessed of events whose category is exactly a collective's, over all devices and the whole
  capture: memory traffic, which for an all-reduce is twice the message and more, not what goes over links.
changed: First version.
ccl_bench: collective_vol
---*/
SELECT
  run_id, -- The run.
  category AS kind, -- The category.
  SUM(bytes_accessed) / 1e9 AS volume_gb, -- Memory traffic in decimal GB.
  COUNT(*) AS events -- Events that it covers.
FROM models.ccl_events
WHERE
  bytes_accessed IS NOT NULL
  AND category IN ('all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter', 'collective-permute')
GROUP BY run_id, category
