/*---
status: stable
unit: count
polarity: none
grain: [run_id, phase, kind, axis]
value: executions_per_step
needs: [any_collective]
description: >
  Executions of collectives per device and step, over the devices that take part. Without marks, every execution of a
  program is a step and phase is NULL. Without any steps, the capture counts as one.
ccl_bench: coll_call_num
---*/
WITH ran AS (
  SELECT run_id, phase, device_id, MAX(steps) AS steps
  FROM models.collective_work
  GROUP BY run_id, phase, device_id
),

phases AS (
  SELECT run_id, phase, SUM(steps) AS steps
  FROM ran
  GROUP BY run_id, phase
)

SELECT
  w.run_id, w.phase, w.kind, w.axis,
  SUM(w.executions) / SUM(w.steps) AS executions_per_step, -- Mean over devices and steps.
  MIN(w.executions / w.steps) AS min_per_step, -- Mean over steps, on the device with the fewest.
  MAX(w.executions / w.steps) AS max_per_step, -- Mean over steps, on the device with the most.
  CAST(SUM(w.executions) AS BIGINT) AS executions,
  COUNT(*) AS devices,
  CAST(SUM(w.steps) AS BIGINT) AS device_steps, -- Steps of these devices together.
  -- Steps of all devices that take part in any collective of the phase. The executions of all kinds and axes, divided
  -- by this number, are the collectives of a step.
  CAST(MIN(p.steps) AS BIGINT) AS phase_device_steps
FROM models.collective_work AS w
INNER JOIN phases AS p ON w.run_id = p.run_id AND w.phase IS NOT DISTINCT FROM p.phase
GROUP BY w.run_id, w.phase, w.kind, w.axis
