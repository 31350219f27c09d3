/*---
metric: communication_time
version: 1
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, phase, device_id]
value: communication_time_ms
requires: SELECT c.run_id FROM main.collectives AS c
description: >
  Time per step in which a collective is under way on a device: the union of the windows of its collectives, from the
  start of an op or start half to the end of the op or done half, hidden parts included. Mean over the phase's steps;
  without any steps the capture counts as one.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  device_id: The device.
  communication_time_ms: Time per step.
  total_ms: Time over all steps.
  collectives: Executions of collectives.
  steps: Steps of the phase on the device; 1 where there are none.
changed: First version.
ccl_bench: total_communication_time
---*/
WITH united AS (
  SELECT
    c.run_id AS run_id,
    c.phase AS phase,
    c.device_id AS device_id,
    CAST(SUM(c.new_ps) AS BIGINT) AS window_ps,
    COUNT(*) AS collectives
  FROM models.communication_windows AS c
  GROUP BY c.run_id, c.phase, c.device_id
)

SELECT
  u.run_id AS run_id,
  u.phase AS phase,
  u.device_id AS device_id,
  CAST(u.window_ps AS DOUBLE) / CAST(COALESCE(s.steps, 1) * 1000000000 AS DOUBLE) AS communication_time_ms,
  CAST(u.window_ps AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS total_ms,
  u.collectives AS collectives,
  COALESCE(s.steps, 1) AS steps
FROM united AS u
LEFT JOIN models.phase_steps AS s
  ON
    u.run_id = s.run_id AND u.device_id = s.device_id
    AND COALESCE(u.phase, '') = COALESCE(s.phase, '')
