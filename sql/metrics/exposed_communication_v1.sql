/*---
metric: exposed_communication
version: 1
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, phase, device_id, kind, axis]
value: exposed_ms
requires: SELECT c.run_id FROM main.collectives AS c
description: >
  Time per step in which a device's op line runs a collective, or the start or done of one, and so computes nothing. Each
  moment counts once, for the collective whose op runs, so that the rows of a device add up to its whole exposed time.
  Mean over the phase's steps; without any steps the capture counts as one.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  device_id: The device.
  kind: Kind of collective.
  axis: Mesh axes of its groups.
  exposed_ms: Exposed time per step.
  total_ms: Exposed time over all steps.
  steps: Steps of the phase on the device; 1 where there are none.
changed: First version.
---*/
WITH exposed AS (
  SELECT
    c.run_id AS run_id,
    c.phase AS phase,
    c.device_id AS device_id,
    c.kind AS kind,
    c.axis AS axis,
    CAST(SUM(c.exposed_ps) AS BIGINT) AS exposed_ps
  FROM models.communication_ops AS c
  GROUP BY c.run_id, c.phase, c.device_id, c.kind, c.axis
)

SELECT
  e.run_id AS run_id,
  e.phase AS phase,
  e.device_id AS device_id,
  e.kind AS kind,
  e.axis AS axis,
  CAST(e.exposed_ps AS DOUBLE) / CAST(COALESCE(s.steps, 1) * 1000000000 AS DOUBLE) AS exposed_ms,
  CAST(e.exposed_ps AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS total_ms,
  COALESCE(s.steps, 1) AS steps
FROM exposed AS e
LEFT JOIN models.phase_steps AS s
  ON
    e.run_id = s.run_id AND e.device_id = s.device_id
    AND COALESCE(e.phase, '') = COALESCE(s.phase, '')
