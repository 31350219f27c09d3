/*---
model: step_ops
description: First start and last end of the leaf ops of each step on a device.
columns:
  run_id: The run.
  device_id: The device.
  phase: Phase; NULL outside of phases.
  step: Step; NULL outside of steps.
  ops: Number of leaf ops.
  first_start_ps: Start of the first op.
  last_end_ps: Latest end of an op.
---*/
SELECT
  o.run_id AS run_id,
  o.device_id AS device_id,
  o.phase AS phase,
  o.step AS step,
  CAST(SUM(o.ops) AS BIGINT) AS ops,
  MIN(o.first_start_ps) AS first_start_ps,
  MAX(o.last_end_ps) AS last_end_ps
FROM models.execution_ops AS o
GROUP BY o.run_id, o.device_id, o.phase, o.step
