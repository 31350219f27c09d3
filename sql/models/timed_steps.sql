/*---
model: timed_steps
description: >
  The steps of each device whose time is that of a whole step, because another step follows. Where no step of a phase has
  one that follows on the device, all of the phase, each by its own duration.
---*/
SELECT
  run_id, -- The run.
  device_id, -- The device.
  step, -- Step.
  phase, -- Phase; NULL for a step of none.
  step_ps -- Time of the step, start to next start.
FROM models.steps
WHERE clock = 'device'
QUALIFY NOT is_last OR MAX(CASE WHEN is_last THEN 0 ELSE 1 END) OVER (PARTITION BY run_id, device_id, phase) = 0
