/*---
metric: collective_frequency
version: 1
status: stable
unit: 1/ms
polarity: none
grain: [run_id, phase, axis]
value: executions_per_ms
needs: [recorded, collectives_in_steps]
description: >
  Executions of collectives on a device per millisecond of the phase, over all kinds of an axis and the devices that
  take part. The time of a phase is the time of its steps, including the gaps between them. In a capture without steps,
  it is the time from a device's first op to the end of its last, and phase is NULL.
changed: First version.
---*/
WITH executed AS (
  SELECT run_id, device_id, phase, axis, SUM(executions) AS executions
  FROM models.collective_work
  GROUP BY run_id, device_id, phase, axis
)

SELECT
  e.run_id, -- The run.
  e.phase, -- Phase; NULL for steps without one, and in a capture without steps.
  e.axis, -- Mesh axes of the groups.
  -- Executions of all devices over the time of all devices.
  SUM(e.executions) * 1000000000 / SUM(d.span_ps) AS executions_per_ms,
  CAST(SUM(e.executions) AS BIGINT) AS executions, -- Executions on all devices.
  SUM(d.span_ps) / 1e9 AS time_ms, -- Time of the phase, of all devices together.
  COUNT(*) AS devices -- Devices that take part.
FROM executed AS e
INNER JOIN models.device_phases AS d
  ON e.run_id = d.run_id AND e.device_id = d.device_id AND e.phase IS NOT DISTINCT FROM d.phase
WHERE d.span_ps > 0
GROUP BY e.run_id, e.phase, e.axis
