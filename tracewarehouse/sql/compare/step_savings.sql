/*---
macro: step_savings
parameters:
  runs: The runs, as a list of run ids.
reads_runs: [runs]
description: >
  By how much a step of each phase would be shorter at most if one thing cost nothing or links were twice as fast, and all
  else stayed.
notes: >
  Links twice as fast save what ici_bandwidth_utility says where it has a value, else half of the exposed communication.
  The parts come from stored metric values and models.collective_ranks, the steps from models.timed_spans. The shares
  overlap, so they do not add up. A thing that is not known of a run has no row.
columns:
  run_id: The run.
  phase: Phase; empty for steps of none.
  metric: The metric that the share comes from.
  change: What would cost nothing, or which links would be twice as fast.
  saved: Share of the step's time, at most.
---*/
WITH steps AS (
  SELECT run_id, phase, SUM(span_ps) AS time_ps
  FROM models.timed_phases
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id, phase
),

timed AS (
  SELECT run_id, event_id, phase, link, exposed_added_ps
  FROM models.timed_collectives
  WHERE LIST_CONTAINS(runs, run_id)
),

linked AS (
  SELECT run_id, phase, link, SUM(exposed_added_ps) AS exposed_ps
  FROM timed
  GROUP BY run_id, phase, link
),

fitted AS (
  SELECT run_id, dimensions ->> '$.phase' AS phase, value / 100 AS saved
  FROM main.metric_values
  WHERE
    LIST_CONTAINS(runs, run_id) AND metric = 'ici_bandwidth_utility' AND dimensions ->> '$.factor' = '2'
),

waits AS (
  SELECT run_id, r.phase, SUM(r.wait_ps) AS wait_ps
  FROM models.collective_ranks AS r
  INNER JOIN timed USING (run_id, event_id)
  WHERE NOT r.is_partial
  GROUP BY run_id, r.phase
),

stored AS (
  SELECT
    run_id, metric,
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
    s.run_id, s.phase,
    'sync_wait' AS metric,
    'no waiting for late devices in collectives' AS change,
    w.wait_ps / s.time_ps AS saved
  FROM steps AS s
  INNER JOIN waits AS w ON s.run_id = w.run_id AND s.phase IS NOT DISTINCT FROM w.phase
  UNION ALL
  SELECT
    s.run_id, s.phase,
    'ici_bandwidth_utility' AS metric,
    CASE l.link
      WHEN 'ici' THEN 'ICI ' WHEN 'dcn' THEN 'DCN ' WHEN 'nvlink' THEN 'NVLink ' ELSE COALESCE(l.link || ' ', '')
    END || 'links twice as fast' AS change,
    COALESCE(CASE WHEN COALESCE(l.link, 'ici') = 'ici' THEN f.saved END, l.exposed_ps / (2e0 * s.time_ps)) AS saved
  FROM steps AS s
  INNER JOIN linked AS l ON s.run_id = l.run_id AND s.phase IS NOT DISTINCT FROM l.phase
  LEFT JOIN fitted AS f ON s.run_id = f.run_id AND s.phase IS NOT DISTINCT FROM f.phase
)

SELECT
  run_id,
  COALESCE(phase, '') AS phase,
  metric, change, saved
FROM shares
WHERE saved IS NOT NULL
