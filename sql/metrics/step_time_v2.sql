/*---
metric: step_time
version: 2
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, phase, step]
value: step_time_ms
requires: SELECT s.run_id FROM models.steps AS s
description: >
  Time of each step from its start to the next step's start, on the slowest device; the last step of a device by its own
  duration. A run whose devices have no steps is measured by its hosts' markers. In a capture without marks every
  execution of a program is a step, and phase is NULL.
columns:
  run_id: The run.
  phase: prefill or decode; NULL for a step of neither.
  step: Step.
  step_time_ms: Time of the step on the slowest device.
  min_ms: Time of the step on the fastest device.
  devices: Devices that ran it; hosts where the clock is theirs.
  clock: Whose clock it is, device or host.
  source: What the steps were read from.
changed: >
  A step lasts until the next one starts and counts on its slowest device; version 1 left out the gaps between steps, so
  that its steps did not add up to the time that passed.
ccl_bench: avg_step_time
---*/
WITH clocks AS (
  SELECT
    c.run_id AS run_id,
    MIN(c.clock) AS clock
  FROM models.steps AS c
  GROUP BY c.run_id
)

SELECT
  s.run_id AS run_id,
  s.phase AS phase,
  s.step AS step,
  CAST(MAX(s.step_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS step_time_ms,
  CAST(MIN(s.step_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS min_ms,
  COUNT(*) AS devices,
  MIN(s.clock) AS clock,
  MIN(s.source) AS source
FROM models.steps AS s
INNER JOIN clocks AS k ON s.run_id = k.run_id AND s.clock = k.clock
GROUP BY s.run_id, s.phase, s.step
