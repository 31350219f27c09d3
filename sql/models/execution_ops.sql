/*---
model: execution_ops
description: The leaf ops of each execution of a program on a device, by phase and step - the one pass over all ops.
columns:
  run_id: The run.
  device_id: The device.
  phase: Phase; NULL outside of phases.
  step: Step; NULL outside of steps.
  execution: Which execution of a program on the device; NULL where not known.
  ops: Number of leaf ops.
  first_start_ps: Start of the first op.
  last_end_ps: Latest end of an op.
  time_ps: Time of the ops, each by itself.
  compute_ps: That of the ops that are neither communication nor copies.
  ordered_ops: Ops of which ingest tells how long the device idled before them.
  least_idle_ps: The least of these times, negative where ops overlap; NULL where none is known.
---*/
SELECT
  o.run_id AS run_id,
  o.device_id AS device_id,
  o.phase AS phase,
  o.step AS step,
  o.execution AS execution,
  COUNT(*) AS ops,
  MIN(o.start_ps) AS first_start_ps,
  MAX(o.end_ps) AS last_end_ps,
  CAST(SUM(o.end_ps - o.start_ps) AS BIGINT) AS time_ps,
  CAST(SUM(CASE WHEN o.is_compute THEN o.end_ps - o.start_ps ELSE 0 END) AS BIGINT) AS compute_ps,
  COUNT(o.idle_before_ps) AS ordered_ops,
  MIN(o.idle_before_ps) AS least_idle_ps
FROM models.leaf_ops AS o
GROUP BY o.run_id, o.device_id, o.phase, o.step, o.execution
