/*---
metric: collective_count
version: 1
status: stable
unit: count
polarity: none
grain: [run_id, phase, kind, axis]
value: executions_per_step
needs: [collectives]
description: >
  Executions of collectives per device and step, over the devices that take part. Without marks, every execution of a
  program is a step and phase is NULL. Without any steps, the capture counts as one.
changed: First version.
ccl_bench: coll_call_num
---*/
SELECT
  run_id, -- The run.
  phase, -- Phase; NULL in a step without one, outside before the first and after the last.
  kind, -- Kind of collective.
  axis, -- Mesh axes of its groups.
  SUM(executions) / SUM(steps) AS executions_per_step, -- Mean over devices and steps.
  MIN(executions / steps) AS min_per_step, -- Mean over steps, on the device with the fewest.
  MAX(executions / steps) AS max_per_step, -- Mean over steps, on the device with the most.
  CAST(SUM(executions) AS BIGINT) AS executions, -- Executions on all devices.
  COUNT(*) AS devices, -- Devices that take part.
  CAST(SUM(steps) AS BIGINT) AS device_steps -- Steps of these devices together.
FROM models.collective_work
GROUP BY run_id, phase, kind, axis
