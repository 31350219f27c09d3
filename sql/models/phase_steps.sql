/*---
model: phase_steps
description: How many steps of each phase a device ran, and their time.
---*/
SELECT
  run_id, -- The run.
  device_id, -- The device.
  phase, -- Phase; NULL for the steps of none.
  COUNT(*) AS steps, -- Number of steps.
  CAST(SUM(step_ps) AS BIGINT) AS time_ps -- Time of these steps together, each from its start to the next one's.
FROM models.steps
WHERE clock = 'device'
GROUP BY run_id, device_id, phase
