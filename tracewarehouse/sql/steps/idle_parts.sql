/*---
description: >
  The time of steps in which each device runs no op, by what ends it. Steps are those of models.timed_phases, whose
  whole time is known, so the parts of a phase on a device add up to the idle time of device_idle. A predicted run has
  no row, because no host leaves its devices idle.
---*/
WITH inside AS (
  SELECT run_id, g.device_id, g.phase, g.next, SUM(g.gap_ps) AS idle_ps
  FROM models.device_gaps AS g
  INNER JOIN models.steps AS s USING (run_id, device_id, step)
  WHERE s.is_timed
  GROUP BY run_id, g.device_id, g.phase, g.next
),

whole AS (
  SELECT run_id, device_id, phase, SUM(idle_ps) AS idle_ps
  FROM inside
  GROUP BY run_id, device_id, phase
),

parts AS (
  SELECT
    run_id, device_id, phase, CASE
      WHEN next = 'launch' THEN 'before a launch'
      WHEN next = 'tick' THEN 'before a pipeline''s tick'
      WHEN next = 'collective' THEN 'before another collective'
      ELSE 'before another op'
    END AS part,
    CASE WHEN next = 'launch' THEN 0 WHEN next = 'tick' THEN 1 WHEN next = 'collective' THEN 2 ELSE 3 END AS position,
    idle_ps
  FROM inside
  UNION ALL
  SELECT
    t.run_id, t.device_id, t.phase,
    'between steps' AS part,
    4 AS position,
    GREATEST(t.span_ps - t.busy_ps - COALESCE(w.idle_ps, 0), 0) AS idle_ps
  FROM models.timed_phases AS t
  LEFT JOIN whole AS w ON t.run_id = w.run_id AND t.device_id = w.device_id AND t.phase IS NOT DISTINCT FROM w.phase
  WHERE t.steps IS NOT NULL
)

SELECT
  p.run_id, p.device_id, p.phase,
  -- before a launch (the first op of an execution of a program), before a pipeline's tick, before another collective,
  -- before another op, or between steps, which includes gaps of up to a microsecond.
  p.part,
  p.position, -- Position of the part, from 0.
  CAST(SUM(p.idle_ps) AS BIGINT) AS idle_ps, -- Time without an op over the steps.
  SUM(p.idle_ps) / (MIN(t.steps) * 1e9) AS mean_ms -- Time per step.
FROM parts AS p
INNER JOIN models.timed_phases AS t
  ON p.run_id = t.run_id AND p.device_id = t.device_id AND p.phase IS NOT DISTINCT FROM t.phase
LEFT JOIN models.predicted_runs AS g ON p.run_id = g.run_id
WHERE g.is_predicted IS NULL
GROUP BY p.run_id, p.device_id, p.phase, p.part, p.position
