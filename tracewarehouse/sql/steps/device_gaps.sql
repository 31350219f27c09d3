/*---
description: >
  One row per gap of more than a microsecond in which a device runs no op, inside a step, between its first op and its
  last.
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
)

SELECT
  p.run_id, p.device_id, p.phase, p.step,
  p.event_id, -- The op that ends the gap.
  p.start_ps, -- Start of the gap, the latest end of the ops before it.
  p.end_ps, -- End of the gap.
  p.end_ps - p.start_ps AS gap_ps, -- Length of the gap, end_ps - start_ps.
  CASE
    WHEN p.end_ps = e.first_start_ps THEN 'launch'
    WHEN h.event_id IS NOT NULL THEN 'tick'
    WHEN p.op_class = 'communication' THEN 'collective'
    ELSE p.op_class
  -- What ends it - launch (the first op of an execution of a program), tick (a collective on axis pp, or the start or
  -- done of one, with which a pipeline's tick hands over), another collective, copy or compute.
  END AS next
FROM models.device_pauses AS p
INNER JOIN steps AS s
  ON
    p.run_id = s.run_id AND p.device_id = s.device_id AND p.step = s.step AND p.phase IS NOT DISTINCT FROM s.phase
    AND p.end_ps > s.first_start_ps
LEFT JOIN handing AS h ON p.run_id = h.run_id AND p.event_id = h.event_id
LEFT JOIN executions AS e ON p.run_id = e.run_id AND p.device_id = e.device_id AND p.execution = e.execution
