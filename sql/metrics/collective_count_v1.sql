/*---
metric: collective_count
version: 1
status: stable
unit: count
polarity: none
grain: [run_id, phase, kind, axis]
value: executions_per_step
requires: SELECT c.run_id FROM main.collectives AS c
description: >
  Executions of collectives per device and step, over the devices that take part. Without marks every execution of a
  program is a step and phase is NULL; without any steps the capture counts as one.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  kind: Kind of collective.
  axis: Mesh axes of its groups.
  executions_per_step: Mean over devices and steps.
  min_per_step: Mean over steps on the device that has fewest.
  max_per_step: Mean over steps on the device that has most.
  executions: Executions on all devices.
  devices: Devices that take part.
  device_steps: Steps of these devices together.
changed: First version.
ccl_bench: coll_call_num
---*/
SELECT
  w.run_id AS run_id,
  w.phase AS phase,
  w.kind AS kind,
  w.axis AS axis,
  CAST(SUM(w.executions) AS DOUBLE) / CAST(SUM(w.steps) AS DOUBLE) AS executions_per_step,
  MIN(CAST(w.executions AS DOUBLE) / CAST(w.steps AS DOUBLE)) AS min_per_step,
  MAX(CAST(w.executions AS DOUBLE) / CAST(w.steps AS DOUBLE)) AS max_per_step,
  CAST(SUM(w.executions) AS BIGINT) AS executions,
  COUNT(*) AS devices,
  CAST(SUM(w.steps) AS BIGINT) AS device_steps
FROM models.collective_work AS w
GROUP BY w.run_id, w.phase, w.kind, w.axis
