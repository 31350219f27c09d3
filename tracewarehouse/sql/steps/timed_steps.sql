/*---
model: timed_steps
description: >
  The steps of each device whose whole time is known, because another step follows. If a phase has no such step on the
  device, its last one, with its own duration.
---*/
SELECT
  run_id, -- The run.
  device_id, -- The device.
  step, -- Step.
  phase, -- Phase; NULL for a step without one.
  step_ps, -- Time of the step, start to next start.
  is_last -- No step follows, so that the time is the step's own duration, without the wait after it.
FROM models.steps
WHERE clock = 'device' AND is_timed
