/*---
description: >
  The time of steps in which each device runs no op, by what ends it. Steps are those of models.timed_phases, whose
  whole time is known, so the parts of a phase on a device add up to the idle time of device_idle. A predicted run has
  no row, because no host leaves its devices idle.
---*/
WITH steps AS (
  SELECT run_id, device_id, phase, step, MIN(first_start_ps) AS first_start_ps
  FROM models.execution_ops
  WHERE step IS NOT NULL
  GROUP BY run_id, device_id, phase, step
),

executions AS (
  SELECT run_id, device_id, execution, MIN(first_start_ps) AS first_start_ps
  FROM models.execution_ops
  GROUP BY run_id, device_id, execution
),

handing AS (
  SELECT run_id, event_id
  FROM models.communication_ops
  WHERE axis = 'pp'
  GROUP BY run_id, event_id
),

-- times of more than a microsecond without an op, inside a step, between its first op and its last
gaps AS (
  SELECT
    p.run_id, p.device_id, p.phase, p.step,
    p.end_ps - p.start_ps AS gap_ps,
    CASE
      WHEN p.end_ps = e.first_start_ps THEN 'before a launch'
      WHEN h.event_id IS NOT NULL THEN 'before a pipeline''s tick'
      WHEN p.op_class = 'communication' THEN 'before another collective'
      ELSE 'before another op'
    END AS part
  FROM models.device_pauses AS p
  INNER JOIN steps AS s
    ON
      p.run_id = s.run_id AND p.device_id = s.device_id AND p.step = s.step AND p.phase IS NOT DISTINCT FROM s.phase
      AND p.end_ps > s.first_start_ps
  LEFT JOIN handing AS h ON p.run_id = h.run_id AND p.event_id = h.event_id
  LEFT JOIN executions AS e ON p.run_id = e.run_id AND p.device_id = e.device_id AND p.execution = e.execution
),

inside AS (
  SELECT run_id, g.device_id, g.phase, g.part, SUM(g.gap_ps) AS idle_ps
  FROM gaps AS g
  INNER JOIN models.steps AS s USING (run_id, device_id, step)
  WHERE s.is_timed
  GROUP BY run_id, g.device_id, g.phase, g.part
),

whole AS (
  SELECT run_id, device_id, phase, SUM(idle_ps) AS idle_ps
  FROM inside
  GROUP BY run_id, device_id, phase
),

parts AS (
  SELECT
    run_id, device_id, phase, part, CASE
      WHEN part = 'before a launch' THEN 0
      WHEN part = 'before a pipeline''s tick' THEN 1
      WHEN part = 'before another collective' THEN 2
      ELSE 3
    END AS position, idle_ps
  FROM inside
  UNION ALL
  SELECT
    t.run_id, t.device_id, t.phase, 'between steps' AS part, 4 AS position,
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
