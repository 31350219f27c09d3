/*---
model: step_ops
inline: true
description: >
  The leaf ops, with the time that each adds to the ops before it and the step that it belongs to. Each moment counts
  once, for the op that started first among those that cover it.
---*/
SELECT
  run_id,
  event_id, -- The op.
  device_id, instruction_id, execution,
  phase, -- Phase of its step; NULL for a step without one.
  step, -- Its step; NULL before the first, after the last, and in a capture without steps.
  start_ps, -- Start of the op.
  start_ps + duration_ps AS end_ps, -- End of the op, exclusive.
  self_ps, -- Duration without the events nested in it.
  duration_ps - overlap_ps AS busy_ps, -- Time of the op that no op before it covers.
  duration_ps - class_overlap_ps AS class_busy_ps -- Time of the op that no op of its op_class before it covers.
FROM main.ops
WHERE is_leaf AND device_id IS NOT NULL
