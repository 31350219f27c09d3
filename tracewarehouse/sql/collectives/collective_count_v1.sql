/*---
metric: collective_count
version: 1
status: stable
unit: count
polarity: none
grain: [run_id, phase, kind, axis]
value: executions_per_step
needs: [any_collective]
description: >
  Executions of collectives per device and step, over the devices that take part. Without marks, every execution of a
  program is a step and phase is NULL. Without any steps, the capture counts as one.
changed: First version.
ccl_bench: coll_call_num
---*/
SELECT
  run_id, phase, kind, axis,
  SUM(executions) / SUM(steps) AS executions_per_step, -- Mean over devices and steps.
  MIN(executions / steps) AS min_per_step, -- Mean over steps, on the device with the fewest.
  MAX(executions / steps) AS max_per_step, -- Mean over steps, on the device with the most.
  CAST(SUM(executions) AS BIGINT) AS executions,
  COUNT(*) AS devices,
  CAST(SUM(steps) AS BIGINT) AS device_steps -- Steps of these devices together.
FROM models.collective_work
GROUP BY run_id, phase, kind, axis
