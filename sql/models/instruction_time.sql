/*---
model: instruction_time
description: Executions and self time of each instruction's leaf ops on each device, by the phase of their step.
---*/
WITH placed AS (
  SELECT run_id, o.device_id, o.phase, step, o.instruction_id, o.self_ps, COALESCE(s.is_timed, FALSE) AS is_timed
  FROM models.step_ops AS o
  LEFT JOIN models.run_steps AS s USING (run_id, step)
),

summed AS (
  SELECT
    run_id,
    device_id,
    phase,
    step IS NOT NULL AS is_in_step,
    instruction_id,
    COUNT(*) AS ops,
    CAST(SUM(self_ps) AS BIGINT) AS self_ps,
    COUNT(*) FILTER (WHERE is_timed) AS timed_ops,
    CAST(COALESCE(SUM(self_ps) FILTER (WHERE is_timed), 0) AS BIGINT) AS timed_self_ps
  FROM placed
  GROUP BY run_id, device_id, phase, step IS NOT NULL, instruction_id
),

stepped AS (
  SELECT run_id, TRUE AS is_stepped
  FROM models.phase_steps
  GROUP BY run_id
)

SELECT
  run_id, -- The run.
  t.device_id, -- The device.
  t.phase, -- Phase of their step; NULL for a step without one, and outside of steps.
  -- Whether models.device_phases includes their time: they belong to a step, or the run has no steps.
  t.is_in_step OR s.is_stepped IS NULL AS is_in_device_phases,
  instruction_id, -- The HLO instruction.
  i.category, -- The profiler's category of the instruction; NULL if it names none.
  i.op_class, -- What the device does in them - communication, copy or compute.
  t.ops, -- Number of leaf ops.
  t.self_ps, -- Their self time.
  t.timed_ops, -- Those in steps whose time is known (models.run_steps).
  t.timed_self_ps -- Their self time.
FROM summed AS t
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
LEFT JOIN stepped AS s USING (run_id)
