/*---
model: phase_steps
description: How many steps of each phase a device ran, and their time.
columns:
  run_id: The run.
  device_id: The device.
  phase: Phase; NULL for the steps of none.
  steps: Number of steps.
  time_ps: Time of these steps together, each from its start to the next one's.
---*/
SELECT
  s.run_id AS run_id,
  s.device_id AS device_id,
  s.phase AS phase,
  COUNT(*) AS steps,
  CAST(SUM(s.step_ps) AS BIGINT) AS time_ps
FROM models.steps AS s
WHERE s.clock = 'device'
GROUP BY s.run_id, s.device_id, s.phase
