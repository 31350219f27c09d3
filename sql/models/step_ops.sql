/*---
model: step_ops
inline: true
description: >
  The leaf ops with the time that each adds to those before it, and the step that it counts for. Each moment counts once,
  for the op that covers it first in order of start. An op between two steps, such as a sampling program, counts for the
  step before it, which lasts until the next begins.
---*/
-- the step is looked up by time only of ops between steps
SELECT
  o.run_id, -- The run.
  o.event_id, -- The op.
  o.device_id, -- The device.
  o.instruction_id, -- The HLO instruction.
  o.execution, -- Which execution of a program on the device; NULL where not known.
  o.phase, -- Phase in which it runs; NULL outside of phases.
  o.step, -- Step in which it runs; NULL outside of steps.
  -- Phase of the step that it counts for; NULL for a step of none.
  CASE WHEN o.step IS NULL THEN s.phase ELSE o.phase END AS lasting_phase,
  -- Step that it counts for; NULL before the first, after the last, and in a capture without steps.
  COALESCE(o.step, s.step) AS lasting_step,
  o.start_ps, -- Start of the op.
  o.start_ps + o.duration_ps AS end_ps, -- End of the op, exclusive.
  o.self_ps, -- Duration without the events nested in it.
  o.duration_ps - o.overlap_ps AS busy_ps, -- Time of the op that no op before it covers.
  o.duration_ps - o.class_overlap_ps AS class_busy_ps -- The same among the ops of its op_class.
FROM main.ops AS o
LEFT JOIN models.steps AS s
  ON
    o.run_id = s.run_id AND CASE WHEN o.step IS NULL THEN o.device_id END = s.device_id AND o.start_ps >= s.start_ps
    AND o.start_ps < s.until_ps
WHERE o.is_leaf AND o.device_id IS NOT NULL
