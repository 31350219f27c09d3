/*---
description: >
  The leaf ops of each execution of a program on a device, summed by phase and step. It is the one pass over all ops.
---*/
SELECT
  run_id, device_id, phase, step, execution,
  COUNT(*) AS ops, -- Number of leaf ops.
  MIN(start_ps) AS first_start_ps, -- Start of the first op.
  MAX(end_ps) AS last_end_ps, -- Latest end of an op.
  CAST(SUM(busy_ps) AS BIGINT) AS busy_ps, -- Time of the ops that no earlier op covers.
  -- The same, among the ops that compute.
  CAST(COALESCE(SUM(class_busy_ps) FILTER (WHERE op_class = 'compute'), 0) AS BIGINT) AS compute_ps
FROM models.leaf_ops
GROUP BY run_id, device_id, phase, step, execution
