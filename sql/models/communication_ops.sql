/*---
model: communication_ops
description: >
  The op-line events of each collective: the op of a synchronous one, the start and the done of an asynchronous one.
  Their time is exposed: the device does nothing else in it. The rest of a window is hidden.
---*/
WITH events AS (
  SELECT run_id, event_id, device_id, phase, step, kind, axis
  FROM main.collectives
  UNION ALL
  SELECT run_id, done_event_id AS event_id, device_id, phase, step, kind, axis
  FROM main.collectives
  WHERE done_event_id IS NOT NULL
)

SELECT
  run_id, -- The run.
  event_id, -- The op, the start or the done.
  e.device_id, -- The device.
  e.phase, -- Phase in which the collective starts; NULL outside of phases.
  e.step, -- Step in which the collective starts; NULL outside of steps.
  e.kind, -- Kind of collective.
  e.axis, -- Mesh axes of its groups.
  o.start_ps, -- Start of the event.
  o.start_ps + o.duration_ps AS end_ps, -- End of the event, exclusive.
  -- Time of the event that no communication op before it on the device covers.
  o.duration_ps - o.class_overlap_ps AS exposed_communication_ps
FROM events AS e
INNER JOIN main.ops AS o USING (run_id, event_id)
