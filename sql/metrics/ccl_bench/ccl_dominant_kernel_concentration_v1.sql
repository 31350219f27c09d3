/*---
metric: ccl_dominant_kernel_concentration
version: 1
status: compatibility
unit: "%"
polarity: none
grain: [run_id]
value: share_percent
requires: SELECT run_id FROM models.ccl_events WHERE category IS NOT NULL
description: >
  Reproduces CCL-Bench's dominant_kernel_concentration with its faults, to explain a published number; use op_time_share
  instead. Largest share of a category in the duration of all events that have one; a while loop counts beside the ops
  in its body, so that its share is too large and theirs too small.
changed: First version.
ccl_bench: dominant_kernel_concentration
---*/
WITH categories AS (
  SELECT run_id, category, SUM(duration_ps) AS category_ps
  FROM models.ccl_events
  WHERE category IS NOT NULL
  GROUP BY run_id, category
)

SELECT
  run_id, -- The run.
  MAX(category_ps) * 100 / SUM(category_ps) AS share_percent, -- Largest share in percent.
  SUM(category_ps) / 1e9 AS total_ms -- Duration of all events with a category.
FROM categories
GROUP BY run_id
HAVING SUM(category_ps) > 0
