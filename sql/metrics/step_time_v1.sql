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
requires: SELECT s.run_id FROM models.steps AS s
description: >
  Mean over the devices of each step's own duration, from its start to its own end; the gap before the next step is in
  no step. A run whose devices have no steps is measured by its hosts' markers. In a capture without marks every
  execution of a program is a step, and phase is NULL.
columns:
  run_id: The run.
  phase: prefill or decode; NULL for a step of neither.
  step: Step.
  step_time_ms: Mean duration of the step over its devices.
  min_ms: Duration of the step on the fastest device.
  max_ms: Duration of the step on the slowest device.
  devices: Devices that ran it; hosts where the clock is theirs.
  clock: Whose clock it is, device or host.
  source: What the steps were read from.
changed: First version.
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
  CAST(SUM(s.end_ps - s.start_ps) AS DOUBLE) / CAST(1000000000 * COUNT(*) AS DOUBLE) AS step_time_ms,
  CAST(MIN(s.end_ps - s.start_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS min_ms,
  CAST(MAX(s.end_ps - s.start_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS max_ms,
  COUNT(*) AS devices,
  MIN(s.clock) AS clock,
  MIN(s.source) AS source
FROM models.steps AS s
INNER JOIN clocks AS k ON s.run_id = k.run_id AND s.clock = k.clock
GROUP BY s.run_id, s.phase, s.step
