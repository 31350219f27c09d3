/*---
metric: ccl_mfu
version: 1
status: deprecated
unit: "%"
polarity: higher_is_better
grain: [run_id]
value: mfu_percent
requires: SELECT e.run_id FROM models.ccl_events AS e WHERE e.model_flops > 0
description: >
  Reproduces CCL-Bench's mfu with its faults, to explain a published number; use mfu instead. Operations of all events
  that state some, over the union of these events' intervals over all devices, over 918e12 for every device of the run.
  Idle time does not count; a while loop counts with its body, and all-reduces count; every chip is a v6e.
columns:
  run_id: The run.
  mfu_percent: Utilization in percent.
changed: First version.
deprecated: Only explains numbers that CCL-Bench published; use mfu instead.
ccl_bench: mfu
---*/
WITH timed AS (
  SELECT
    e.run_id AS run_id,
    e.model_flops AS model_flops,
    e.start_ps AS start_ps,
    e.start_ps + e.duration_ps AS end_ps,
    MAX(e.start_ps + e.duration_ps) OVER (
      PARTITION BY e.run_id ORDER BY e.start_ps, e.event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS covered_until_ps
  FROM models.ccl_events AS e
  WHERE e.model_flops > 0
),

summed AS (
  SELECT
    t.run_id AS run_id,
    CAST(SUM(t.model_flops) AS BIGINT) AS model_flops,
    CAST(
      SUM(GREATEST(t.end_ps - GREATEST(t.start_ps, COALESCE(t.covered_until_ps, t.start_ps)), 0)) AS BIGINT
    ) AS active_ps
  FROM timed AS t
  GROUP BY t.run_id
)

SELECT
  s.run_id AS run_id,
  CAST(CAST(s.model_flops AS DOUBLE) * CAST(100 AS DOUBLE) AS DOUBLE)
  / CAST(
    CAST(s.active_ps AS DOUBLE) * CAST(918 * (r.device_count + COALESCE(r.missing_devices, 0)) AS DOUBLE) AS DOUBLE
  )
    AS mfu_percent
FROM summed AS s
INNER JOIN main.runs AS r ON s.run_id = r.run_id
WHERE s.active_ps > 0 AND r.device_count > 0
