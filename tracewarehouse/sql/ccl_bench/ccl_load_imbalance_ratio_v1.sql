/*---
status: compatibility
unit: ratio
polarity: lower_is_better
grain: [run_id]
value: ratio
description: >
  Reproduces CCL-Bench's load_imbalance_ratio on GPUs with its faults, to explain a published number; use load_imbalance
  instead.
notes: >
  It divides the time in which the busiest GPU runs kernels by that of the least busy. Waiting in a collective counts as
  running, so the rank for which the others wait looks least loaded.
ccl_bench: load_imbalance_ratio
---*/
WITH kernels AS (
  SELECT
    run_id,
    CASE WHEN is_nsys THEN CAST(device_id AS VARCHAR) ELSE host END AS place,
    event_id, start_ps, end_ps
  FROM models.ccl_kernels
),

covered AS (
  SELECT
    run_id, place, start_ps, end_ps,
    MAX(end_ps) OVER (
      PARTITION BY run_id, place ORDER BY start_ps, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS covered_until_ps
  FROM kernels
),

active AS (
  SELECT
    run_id, place,
    SUM(GREATEST(end_ps - GREATEST(start_ps, COALESCE(covered_until_ps, start_ps)), 0)) AS active_ps
  FROM covered
  GROUP BY run_id, place
)

SELECT
  run_id,
  MAX(active_ps) / MIN(active_ps) AS ratio, -- Largest over smallest time.
  COUNT(*) AS devices -- Files, or devices of an export of Nsight Systems.
FROM active
GROUP BY run_id
HAVING COUNT(*) > 1 AND MIN(active_ps) > 0
