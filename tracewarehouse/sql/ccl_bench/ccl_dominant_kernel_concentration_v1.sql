/*---
status: compatibility
unit: "%"
polarity: none
grain: [run_id]
value: share_percent
description: >
  Reproduces CCL-Bench's dominant_kernel_concentration with its faults, to explain a published number; use
  op_time_share instead.
notes: >
  It takes the largest share of a category in the duration of all events that have one. A while loop counts beside the
  ops in its body, so its share is too large and theirs are too small. Events that state no duration on the device's
  clock count in microseconds, and the others in nanoseconds. In Kineto traces and exports of Nsight Systems it takes
  the largest share of a kernel, by its name.
ccl_bench: dominant_kernel_concentration
---*/
WITH categories AS (
  SELECT
    run_id, category,
    SUM(mixed_duration) AS of_category,
    SUM(COALESCE(device_duration_ps, duration_ps)) AS category_ps
  FROM models.ccl_events
  WHERE counts AND category <> '' AND mixed_duration > 0
  GROUP BY run_id, category
),

kernels AS (
  SELECT run_id, name, SUM(duration_ps) AS kernel_ps
  FROM models.ccl_kernels
  GROUP BY run_id, name
)

SELECT
  run_id,
  MAX(of_category) * 100 / SUM(of_category) AS share_percent, -- Largest share in percent.
  SUM(category_ps) / 1e9 AS total_ms -- Duration of all events with a category.
FROM categories
GROUP BY run_id
UNION ALL
SELECT run_id, MAX(kernel_ps) * 100 / SUM(kernel_ps) AS share_percent, SUM(kernel_ps) / 1e9 AS total_ms
FROM kernels
GROUP BY run_id
HAVING SUM(kernel_ps) > 0
