/*---
model: phase_steps
description: >
  Number of all steps of each phase that a device ran, and their time. The last step of a capture counts with its own
  duration, because its work is known; what time passed after it is not, so shares of idle time use models.timed_steps.
---*/
SELECT
  run_id, -- The run.
  device_id, -- The device.
  phase, -- Phase; NULL for steps without one.
  COUNT(*) AS steps, -- Number of steps.
  CAST(SUM(step_ps) AS BIGINT) AS time_ps -- Time of these steps together, each from its start to the next one's.
FROM models.steps
WHERE clock = 'device'
GROUP BY run_id, device_id, phase
