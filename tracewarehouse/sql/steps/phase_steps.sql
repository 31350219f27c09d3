/*---
description: >
  Number of all steps of each phase that a device ran, for means of work per step. The last step counts too, because its
  work is known.
notes: >
  The length of the last step is not known, so mean times leave it out, and shares and rates of time use
  models.timed_spans. models.device_phases adds the work of the steps, for which it reads all ops.
---*/
SELECT
  run_id, device_id, phase,
  COUNT(*) AS steps, -- Number of steps.
  COUNT(*) FILTER (WHERE is_timed) AS timed_steps -- Those whose time is known; mean times per step are over these.
FROM models.steps
WHERE clock = 'device'
GROUP BY run_id, device_id, phase
