/*---
model: collective_work
description: >
  Executions and bytes of each kind of collective and axis on each device, per phase, with the number of steps that the
  device ran in the phase.
columns:
  run_id: The run.
  device_id: The device.
  phase: Phase; NULL outside of phases.
  kind: Kind of collective.
  axis: Mesh axes of its groups.
  steps: Steps of the phase on the device; 1 where there are none, the capture being one.
  executions: Executions on the device.
  sized_executions: Those whose message size is known.
  message_bytes: Message bytes of those; NULL where none is known.
  wire_bytes: Bytes that the device sends; NULL where it is not known of all executions.
---*/
WITH counted AS (
  SELECT
    c.run_id AS run_id,
    c.device_id AS device_id,
    c.phase AS phase,
    c.kind AS kind,
    c.axis AS axis,
    COUNT(*) AS executions,
    COUNT(c.message_bytes) AS sized_executions,
    CAST(SUM(c.message_bytes) AS BIGINT) AS message_bytes,
    CASE WHEN COUNT(c.wire_bytes) = COUNT(*) THEN CAST(SUM(c.wire_bytes) AS BIGINT) ELSE NULL END AS wire_bytes
  FROM main.collectives AS c
  GROUP BY c.run_id, c.device_id, c.phase, c.kind, c.axis
)

SELECT
  n.run_id AS run_id,
  n.device_id AS device_id,
  n.phase AS phase,
  n.kind AS kind,
  n.axis AS axis,
  COALESCE(s.steps, 1) AS steps,
  n.executions AS executions,
  n.sized_executions AS sized_executions,
  n.message_bytes AS message_bytes,
  n.wire_bytes AS wire_bytes
FROM counted AS n
LEFT JOIN models.phase_steps AS s
  ON
    n.run_id = s.run_id AND n.device_id = s.device_id
    AND COALESCE(n.phase, '') = COALESCE(s.phase, '')
