/*---
metric: step_time
version: 1
status: deprecated
deprecated: >
  Leaves out the gap after each step; step_time version 2 counts it, so that steps add up to the time that passed.
unit: ms
polarity: lower_is_better
grain: [run_id, phase, step]
value: step_time_ms
description: >
  Mean over the devices of each step's own duration, from its start to its own end; the gap before the next step belongs
  to no step. If the devices of a run have no steps, its hosts' markers give the time. In a capture without marks, every
  execution of a program is a step, and phase is NULL.
changed: First version.
ccl_bench: avg_step_time
---*/
WITH clocks AS (
  SELECT run_id, MIN(clock) AS clock
  FROM models.steps
  GROUP BY run_id
)

SELECT
  run_id, -- The run.
  s.phase, -- prefill or decode; NULL for a step of neither.
  s.step, -- Step.
  SUM(s.end_ps - s.start_ps) / (COUNT(*) * 1e9) AS step_time_ms, -- Mean duration of the step over its devices.
  MIN(s.end_ps - s.start_ps) / 1e9 AS min_ms, -- Duration of the step on the fastest device.
  MAX(s.end_ps - s.start_ps) / 1e9 AS max_ms, -- Duration of the step on the slowest device.
  COUNT(*) AS devices, -- Devices that ran it; hosts if the clock is theirs.
  MIN(clock) AS clock, -- Clock of the times, device or host.
  MIN(s.source) AS source -- Where the steps come from.
FROM models.steps AS s
INNER JOIN clocks USING (run_id, clock)
GROUP BY run_id, s.phase, s.step
