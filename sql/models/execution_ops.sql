/*---
model: execution_ops
description: The leaf ops of each execution of a program on a device.
columns:
  run_id: The run.
  device_id: The device.
  execution: Which execution of a program on the device.
  phase: Phase of its ops; of several the first by name, NULL outside of phases.
  first_start_ps: Start of the first op.
---*/
SELECT
  o.run_id AS run_id,
  o.device_id AS device_id,
  o.execution AS execution,
  MIN(o.phase) AS phase,
  MIN(o.start_ps) AS first_start_ps
FROM models.leaf_ops AS o
WHERE o.execution IS NOT NULL
GROUP BY o.run_id, o.device_id, o.execution
