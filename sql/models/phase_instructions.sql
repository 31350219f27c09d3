/*---
model: phase_instructions
description: >
  Executions of each instruction on each device by phase, of the ops whose time models.device_phases has: an op between
  two steps, such as a sampling program, belongs to the step before it, which lasts until the next begins, and ops outside
  the steps of a device that has some are left out. An instruction that runs in the steps of a phase and between them has a
  row for each.
columns:
  run_id: The run.
  device_id: The device.
  phase: Phase; NULL for the steps of none, and in a capture without steps.
  instruction_id: The HLO instruction.
  ops: Number of leaf ops.
---*/
WITH devices_with_steps AS (
  SELECT
    d.run_id AS run_id,
    d.device_id AS device_id
  FROM models.phase_steps AS d
  GROUP BY d.run_id, d.device_id
)

SELECT
  t.run_id AS run_id,
  t.device_id AS device_id,
  CASE WHEN t.is_in_step THEN t.phase ELSE NULL END AS phase,
  t.instruction_id AS instruction_id,
  t.ops AS ops
FROM models.instruction_time AS t
LEFT JOIN devices_with_steps AS w ON t.run_id = w.run_id AND t.device_id = w.device_id
WHERE t.is_in_step OR w.run_id IS NULL
UNION ALL
SELECT
  o.run_id AS run_id,
  o.device_id AS device_id,
  s.phase AS phase,
  o.instruction_id AS instruction_id,
  COUNT(*) AS ops
FROM main.ops AS o
INNER JOIN models.steps AS s
  ON
    o.run_id = s.run_id AND o.device_id = s.device_id AND s.clock = 'device'
    AND o.start_ps >= s.start_ps AND o.start_ps < s.until_ps
WHERE o.is_leaf AND o.step IS NULL
GROUP BY o.run_id, o.device_id, s.phase, o.instruction_id
