/*---
model: execution_ops
description: >
  The leaf ops of each execution of a program on a device, summed by phase and step - the one pass over all ops.
---*/
SELECT
  run_id, o.device_id,
  o.phase, -- Phase of their step; NULL for a step without one, and outside of steps.
  o.step, -- Their step; NULL outside of steps.
  o.execution,
  COUNT(*) AS ops, -- Number of leaf ops.
  MIN(o.start_ps) AS first_start_ps, -- Start of the first op.
  MAX(o.end_ps) AS last_end_ps, -- Latest end of an op.
  CAST(SUM(o.busy_ps) AS BIGINT) AS busy_ps, -- Time that the ops add to those before them.
  -- The same, among the ops that compute.
  CAST(COALESCE(SUM(o.class_busy_ps) FILTER (WHERE i.op_class = 'compute'), 0) AS BIGINT) AS compute_ps
FROM models.step_ops AS o
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
GROUP BY run_id, o.device_id, o.phase, o.step, o.execution
