/*---
model: device_gaps
description: Times inside a step, between its first op and its last, in which a device runs no op; one row per gap.
columns:
  run_id: The run.
  device_id: The device.
  phase: Phase; NULL for a step of none.
  step: The step.
  event_id: The op that ends the gap.
  start_ps: Start of the gap, the latest end of the ops before it.
  end_ps: End of the gap.
  next: What ends it - launch (an op of another execution of a program), collective, copy or compute.
---*/
WITH timed AS (
  SELECT
    o.run_id AS run_id,
    o.device_id AS device_id,
    o.phase AS phase,
    o.step AS step,
    o.event_id AS event_id,
    o.start_ps AS start_ps,
    o.execution AS execution,
    o.is_communication AS is_communication,
    o.is_copy AS is_copy,
    MAX(o.end_ps) OVER (
      PARTITION BY o.run_id, o.device_id, o.phase, o.step ORDER BY o.start_ps, o.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS busy_until_ps,
    LAG(o.execution) OVER (
      PARTITION BY o.run_id, o.device_id, o.phase, o.step ORDER BY o.start_ps, o.event_id
    ) AS previous_execution
  FROM models.leaf_ops AS o
  WHERE o.step IS NOT NULL
)

SELECT
  t.run_id AS run_id,
  t.device_id AS device_id,
  t.phase AS phase,
  t.step AS step,
  t.event_id AS event_id,
  t.busy_until_ps AS start_ps,
  t.start_ps AS end_ps,
  CASE
    WHEN t.execution <> t.previous_execution THEN 'launch'
    WHEN t.is_communication THEN 'collective'
    WHEN t.is_copy THEN 'copy'
    ELSE 'compute'
  END AS next
FROM timed AS t
WHERE t.start_ps > t.busy_until_ps
