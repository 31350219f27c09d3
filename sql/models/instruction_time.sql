/*---
model: instruction_time
description: Executions and self time of each instruction's leaf ops on each device, by phase.
columns:
  run_id: The run.
  device_id: The device.
  phase: Phase; NULL outside of phases.
  is_in_step: Whether the ops are in a step.
  instruction_id: The HLO instruction.
  category: The profiler's category of the instruction; NULL where it names none.
  is_communication: A collective, or the start or done of one.
  is_copy: A copy, or the start or done of an asynchronous op that is no collective.
  is_compute: Neither communication nor a copy.
  ops: Number of leaf ops.
  self_ps: Their self time.
---*/
WITH summed AS (
  SELECT
    o.run_id AS run_id,
    o.device_id AS device_id,
    o.phase AS phase,
    o.step IS NOT NULL AS is_in_step,
    o.instruction_id AS instruction_id,
    COUNT(*) AS ops,
    CAST(SUM(o.self_ps) AS BIGINT) AS self_ps
  FROM main.ops AS o
  WHERE o.is_leaf AND o.device_id IS NOT NULL
  GROUP BY o.run_id, o.device_id, o.phase, o.step IS NOT NULL, o.instruction_id
)

SELECT
  s.run_id AS run_id,
  s.device_id AS device_id,
  s.phase AS phase,
  s.is_in_step AS is_in_step,
  s.instruction_id AS instruction_id,
  i.category AS category,
  i.is_communication AS is_communication,
  i.is_copy AS is_copy,
  i.is_compute AS is_compute,
  s.ops AS ops,
  s.self_ps AS self_ps
FROM summed AS s
INNER JOIN models.instruction_kinds AS i ON s.run_id = i.run_id AND s.instruction_id = i.instruction_id
