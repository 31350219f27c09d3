/*---
metric: ccl_mfu
version: 1
status: compatibility
unit: "%"
polarity: higher_is_better
grain: [run_id]
value: mfu_percent
description: >
  Reproduces CCL-Bench's mfu with its faults, to explain a published number; use mfu instead.
notes: >
  It divides the operations of all events that state some by the union of these events' intervals over all devices,
  and by 918e12 for every chip of the run. Idle time does not count. A while loop counts with its body, and
  all-reduces count. The only TPU that it knows is the v6e. The result is rounded to four decimals.
changed: First version.
ccl_bench: mfu
---*/
WITH timed AS (
  SELECT
    run_id, model_flops, start_ps,
    start_ps + GREATEST(duration_ps, 0) AS end_ps,
    MAX(start_ps + GREATEST(duration_ps, 0)) OVER (
      PARTITION BY run_id ORDER BY start_ps, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS covered_until_ps
  FROM models.ccl_events
  WHERE model_flops > 0
),

summed AS (
  SELECT
    run_id,
    SUM(model_flops) AS model_flops,
    SUM(GREATEST(end_ps - GREATEST(start_ps, COALESCE(covered_until_ps, start_ps)), 0)) AS active_ps
  FROM timed
  GROUP BY run_id
)

SELECT
  run_id,
  -- Utilization in percent.
  ROUND(s.model_flops * 1e2 / (CAST(s.active_ps AS DOUBLE) * (918 * c.chips)), 4) AS mfu_percent
FROM summed AS s
INNER JOIN models.ccl_card AS c USING (run_id)
WHERE s.active_ps > 0 AND c.chips > 0 AND c.hardware = 'tpu_v6e'
