/*---
metric: ccl_dominant_kernel_concentration
version: 1
status: deprecated
unit: "%"
polarity: none
grain: [run_id]
value: share_percent
requires: SELECT e.run_id FROM models.ccl_events AS e WHERE e.category IS NOT NULL
description: >
  Reproduces CCL-Bench's dominant_kernel_concentration with its faults, to explain a published number; use op_time_share
  instead. Largest share of a category in the duration of all events that have one; a while loop counts beside the ops
  in its body, so that its share is too large and theirs too small.
columns:
  run_id: The run.
  share_percent: Largest share in percent.
  total_ms: Duration of all events with a category.
changed: First version.
deprecated: Only explains numbers that CCL-Bench published; use op_time_share instead.
ccl_bench: dominant_kernel_concentration
---*/
WITH categories AS (
  SELECT
    e.run_id AS run_id,
    e.category AS category,
    CAST(SUM(e.duration_ps) AS BIGINT) AS category_ps
  FROM models.ccl_events AS e
  WHERE e.category IS NOT NULL
  GROUP BY e.run_id, e.category
)

SELECT
  c.run_id AS run_id,
  CAST(MAX(c.category_ps) * 100 AS DOUBLE) / CAST(SUM(c.category_ps) AS DOUBLE) AS share_percent,
  CAST(SUM(c.category_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS total_ms
FROM categories AS c
GROUP BY c.run_id
HAVING SUM(c.category_ps) > 0
