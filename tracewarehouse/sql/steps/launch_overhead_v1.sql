/*---
status: stable
unit: us
polarity: lower_is_better
grain: [run_id, phase, device_id]
value: gap_us
needs: [recorded, repeated_launches]
description: >
  Time on a device from the end of one execution of a program to the start of the next, as the mean over the executions
  of a phase. The dispatch time lasts from the start of the host's dispatch to the start of the execution on the device.
  The undispatched part of a gap comes before the host begins to dispatch.
notes: >
  The phase is that of the next execution. An execution that starts before earlier ones have ended has a gap of 0. The
  dispatch time includes queueing behind earlier executions. The rest of a gap, after dispatch began, is the device's
  own. Percentiles are by nearest rank. A phase has a row only if one of its executions has one before it, or a known
  dispatch.
---*/
WITH executions AS (
  SELECT
    run_id, device_id,
    "index" AS execution,
    start_ps,
    MAX(end_ps) OVER (
      PARTITION BY run_id, device_id ORDER BY start_ps, "index" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS last_end_ps
  FROM main.phases
  WHERE kind = 'module' AND device_id IS NOT NULL
),

phase_of_execution AS (
  SELECT
    run_id, device_id, execution,
    COALESCE(MIN(phase) FILTER (WHERE phase <> 'outside'), MIN(phase)) AS phase
  FROM models.execution_ops
  WHERE execution IS NOT NULL
  GROUP BY run_id, device_id, execution
),

timed AS (
  SELECT
    run_id, device_id, f.phase, execution,
    CASE WHEN e.last_end_ps IS NOT NULL THEN GREATEST(e.start_ps - e.last_end_ps, 0) END AS gap_ps,
    e.start_ps - d.dispatch_ps AS dispatch_ps,
    CASE
      WHEN e.last_end_ps IS NOT NULL AND d.dispatch_ps IS NOT NULL
        THEN GREATEST(LEAST(d.dispatch_ps, e.start_ps) - e.last_end_ps, 0)
    END AS late_ps
  FROM executions AS e
  LEFT JOIN phase_of_execution AS f USING (run_id, device_id, execution)
  LEFT JOIN models.dispatches AS d USING (run_id, device_id, execution)
  WHERE e.last_end_ps IS NOT NULL OR d.dispatch_ps IS NOT NULL
),

ranked AS (
  SELECT
    * EXCLUDE (execution),
    CUME_DIST() OVER (PARTITION BY run_id, device_id, phase, gap_ps IS NULL ORDER BY gap_ps) AS gap_quantile,
    CUME_DIST() OVER (
      PARTITION BY run_id, device_id, phase, dispatch_ps IS NULL ORDER BY dispatch_ps
    ) AS dispatch_quantile
  FROM timed
),

recorded AS (
  SELECT r.*
  FROM ranked AS r
  LEFT JOIN models.predicted_runs AS g ON r.run_id = g.run_id
  WHERE g.is_predicted IS NULL
)

SELECT
  run_id,
  phase, -- Phase of the execution that starts; NULL in a step without one, outside of all steps 'outside'.
  device_id,
  -- Mean time between executions; NULL if no execution has one before it.
  SUM(gap_ps) / (NULLIF(COUNT(gap_ps), 0) * 1e6) AS gap_us,
  MIN(gap_ps) FILTER (WHERE gap_quantile >= 0.5) / 1e6 AS p50_us,
  MIN(gap_ps) FILTER (WHERE gap_quantile >= 0.9) / 1e6 AS p90_us,
  MIN(gap_ps) FILTER (WHERE gap_quantile >= 0.99) / 1e6 AS p99_us,
  COUNT(gap_ps) AS launches, -- Executions with one before them.
  -- Mean time from the start of dispatch on the host to the start on the device; NULL if unknown.
  SUM(dispatch_ps) / (NULLIF(COUNT(dispatch_ps), 0) * 1e6) AS dispatch_us,
  MIN(dispatch_ps) FILTER (WHERE dispatch_quantile >= 0.5) / 1e6 AS dispatch_p50_us, -- Median.
  MIN(dispatch_ps) FILTER (WHERE dispatch_quantile >= 0.9) / 1e6 AS dispatch_p90_us, -- 90th percentile.
  MIN(dispatch_ps) FILTER (WHERE dispatch_quantile >= 0.99) / 1e6 AS dispatch_p99_us, -- 99th percentile.
  COUNT(dispatch_ps) AS dispatches, -- Executions whose dispatch is known.
  -- Mean part of the gap before the dispatch began, over the launches whose dispatch is known; NULL where there are
  -- none.
  SUM(late_ps) / (NULLIF(COUNT(late_ps), 0) * 1e6) AS late_us
FROM recorded
GROUP BY run_id, phase, device_id
