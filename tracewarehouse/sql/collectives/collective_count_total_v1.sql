/*---
metric: collective_count_total
version: 1
status: experimental
unit: count
polarity: none
grain: [run_id, phase]
value: executions_per_step
needs: [collectives]
description: >
  Executions of collectives of all kinds and axes per device and step of a phase, over the devices that take part in any:
  collective_count over kinds and axes, whose own values have different numbers of devices below them and do not add up.
changed: First version.
---*/
WITH worked AS (
  SELECT run_id, phase, device_id, MAX(steps) AS steps, SUM(executions) AS executions
  FROM models.collective_work
  GROUP BY run_id, phase, device_id
)

SELECT
  run_id, -- The run.
  phase, -- Phase; NULL in a step without one, outside before the first and after the last.
  SUM(executions) / SUM(steps) AS executions_per_step, -- Mean over devices and steps.
  CAST(SUM(executions) AS BIGINT) AS executions, -- Executions on all devices.
  COUNT(*) AS devices, -- Devices that take part.
  CAST(SUM(steps) AS BIGINT) AS device_steps -- Steps of these devices together.
FROM worked
GROUP BY run_id, phase
