/*---
model: timed_steps
description: >
  The steps of each device whose whole time is known, because another step follows. If a phase has no such step on the
  device, all of its steps, each with its own duration.
---*/
SELECT
  run_id, -- The run.
  device_id, -- The device.
  step, -- Step.
  phase, -- Phase; NULL for a step without one.
  step_ps -- Time of the step, start to next start.
FROM models.steps
WHERE clock = 'device'
QUALIFY NOT is_last OR MAX(CASE WHEN is_last THEN 0 ELSE 1 END) OVER (PARTITION BY run_id, device_id, phase) = 0
