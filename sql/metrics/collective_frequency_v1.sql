/*---
metric: collective_frequency
version: 1
status: stable
unit: 1/ms
polarity: none
grain: [run_id, phase, axis]
value: executions_per_ms
requires: SELECT c.run_id FROM main.collectives AS c
description: >
  Executions of collectives on a device per millisecond of the phase, all kinds of an axis together, over the devices
  that take part. The time of a phase is that of its steps, the gaps between them included; in a capture without steps it
  is from a device's first op to the end of its last, and phase is NULL.
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none, and in a capture without steps.
  axis: Mesh axes of the groups.
  executions_per_ms: Executions of all devices over the time of all devices.
  executions: Executions on all devices.
  time_ms: Time of the phase, of all devices together.
  devices: Devices that take part.
changed: First version.
---*/
WITH executed AS (
  SELECT
    w.run_id AS run_id,
    w.device_id AS device_id,
    w.phase AS phase,
    w.axis AS axis,
    CAST(SUM(w.executions) AS BIGINT) AS executions
  FROM models.collective_work AS w
  GROUP BY w.run_id, w.device_id, w.phase, w.axis
)

SELECT
  e.run_id AS run_id,
  e.phase AS phase,
  e.axis AS axis,
  CAST(SUM(e.executions) * 1000000000 AS DOUBLE) / CAST(SUM(d.span_ps) AS DOUBLE) AS executions_per_ms,
  CAST(SUM(e.executions) AS BIGINT) AS executions,
  CAST(SUM(d.span_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS time_ms,
  COUNT(*) AS devices
FROM executed AS e
INNER JOIN models.device_phases AS d
  ON
    e.run_id = d.run_id AND e.device_id = d.device_id
    AND COALESCE(e.phase, '') = COALESCE(d.phase, '')
WHERE d.span_ps > 0
GROUP BY e.run_id, e.phase, e.axis
