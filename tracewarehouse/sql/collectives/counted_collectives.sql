/*---
inline: true
description: >
  The collectives that mean times per step cover. They run in the timed steps of models.steps, or outside of steps.
---*/
SELECT
  c.run_id,
  c.event_id, -- The op, or the start of an asynchronous one.
  c.device_id, c.phase, c.kind, c.axis,
  c.exposed_added_ps -- Time in which the op line runs it while no earlier collective runs.
FROM main.collectives AS c
LEFT JOIN models.steps AS s
  ON c.run_id = s.run_id AND c.device_id = s.device_id AND c.step = s.step AND s.clock = 'device'
WHERE c.step IS NULL OR s.is_timed
