/*---
status: compatibility
unit: "%"
polarity: higher_is_better
grain: [run_id]
value: coverage_percent
description: >
  Reproduces CCL-Bench's mean_sm_coverage on Kineto traces with its faults, to explain a published number; use
  device_idle instead.
notes: >
  It takes the mean of the blocks of a kernel per multiprocessor, at most 1, weighted by the kernels' durations. A block
  may use any part of a multiprocessor, time without kernels does not count, and traces of AMD state no such number.
ccl_bench: mean_sm_coverage
---*/
WITH stated AS (
  SELECT run_id, event_id, MAX(COALESCE(double_value, int_value, CAST(string_value AS DOUBLE))) AS blocks
  FROM main.event_stats
  WHERE name = 'blocks per SM'
  GROUP BY run_id, event_id
),

kernels AS (
  SELECT
    run_id,
    k.duration_ps // 1000 AS duration_ns,
    -- in units of 1e-9, so that the sum is exact
    CAST(FLOOR(CASE WHEN s.blocks < 1 THEN s.blocks ELSE 1 END * 1e9 + 5e-1) AS BIGINT) AS units
  FROM models.ccl_kernels AS k
  INNER JOIN stated AS s USING (run_id, event_id)
  WHERE NOT k.is_nsys
)

SELECT
  run_id,
  SUM(units * duration_ns) / (SUM(duration_ns) * 1e7) AS coverage_percent, -- Mean share in percent.
  COUNT(*) AS kernels -- Kernels covered.
FROM kernels
GROUP BY run_id
HAVING SUM(duration_ns) > 0
