/*---
macro: step_savings
parameters:
  runs: The runs, as a list of run ids.
description: >
  By how much a step of each phase would be shorter at most if one thing cost nothing and all else stayed, as stored
  metric values and models.collective_time say it. The shares overlap, so they do not add up. A thing that is not known of
  a run has no row.
columns:
  run_id: The run.
  phase: Phase; empty for steps of none.
  metric: The metric that the share comes from.
  change: What would cost nothing.
  saved: Share of the step's time, at most.
---*/
WITH steps AS (
  SELECT run_id, phase, SUM(time_ps) AS time_ps
  FROM models.phase_steps
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id, phase
),

waits AS (
  SELECT run_id, phase, SUM(wait_ps) AS wait_ps
  FROM models.collective_time
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id, phase
),

stored AS (
  SELECT
    run_id,
    metric,
    CASE metric
      WHEN 'communication_fraction' THEN 'communication that is hidden altogether'
      WHEN 'device_idle' THEN 'devices that never idle'
      ELSE 'copies that are hidden altogether'
    END AS change,
    dimensions ->> '$.phase' AS phase,
    value AS saved
  FROM main.metric_values
  WHERE
    LIST_CONTAINS(runs, run_id)
    AND metric IN ('communication_fraction', 'device_idle', 'copy_overhead')
),

shares AS (
  SELECT run_id, phase, metric, change, SUM(saved) / COUNT(*) AS saved
  FROM stored
  GROUP BY run_id, phase, metric, change
  UNION ALL
  SELECT
    s.run_id,
    s.phase,
    'sync_wait' AS metric,
    'no waiting for late devices in collectives' AS change,
    w.wait_ps / s.time_ps AS saved
  FROM steps AS s
  INNER JOIN waits AS w ON s.run_id = w.run_id AND s.phase IS NOT DISTINCT FROM w.phase
  WHERE s.time_ps > 0
)

SELECT
  run_id,
  COALESCE(phase, '') AS phase,
  metric,
  change,
  saved
FROM shares
WHERE saved IS NOT NULL
