/*---
model: decode_steps
description: >
  Time of each decode step on the devices' clock and on the hosts': that of the slowest device or host. The last decode
  step before something else counts by its own duration, because the gap after it is not time between tokens.
columns:
  run_id: The run.
  clock: host or device.
  step: Step.
  token_ps: Start to next start.
  source: What the steps were read from.
---*/
SELECT
  s.run_id AS run_id,
  s.clock AS clock,
  s.step AS step,
  MAX(CASE WHEN s.is_last_of_phase THEN s.end_ps - s.start_ps ELSE s.step_ps END) AS token_ps,
  MIN(s.source) AS source
FROM models.steps AS s
WHERE s.phase = 'decode'
GROUP BY s.run_id, s.clock, s.step
