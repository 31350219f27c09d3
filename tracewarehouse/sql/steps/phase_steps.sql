/*---
model: phase_steps
description: >
  Number of all steps of each phase that a device ran, for means of work per step. The last step of a capture counts too,
  because its work is known. How long it took is not, so shares and rates of time use models.timed_spans.
---*/
SELECT
  run_id, device_id, phase,
  COUNT(*) AS steps -- Number of steps.
FROM models.steps
WHERE clock = 'device'
GROUP BY run_id, device_id, phase
