/*---
description: >
  Time in which a device was busy, per step. An op between two steps, such as one of a sampling program, belongs to the
  step before it, because a step lasts until the next one begins.
---*/
SELECT
  run_id, device_id,
  phase, -- Phase; NULL for a step without one, and outside of steps.
  step, -- Step; NULL before the first, after the last, and in a capture without steps.
  MIN(first_start_ps) AS first_start_ps, -- Start of the first op.
  MAX(last_end_ps) AS last_end_ps, -- Latest end of an op.
  CAST(SUM(ops) AS BIGINT) AS ops, -- Number of leaf ops that start in it.
  CAST(SUM(busy_ps) AS BIGINT) AS busy_ps, -- Union of all leaf ops.
  CAST(SUM(compute_ps) AS BIGINT) AS compute_ps -- Union of the leaf ops that are neither communication nor copies.
FROM models.execution_ops
GROUP BY run_id, device_id, phase, step
