/*---
model: leaf_ops
inline: true
description: >
  The ops that a device executes itself: events of its op line without the containers (while, conditional, call) that
  hold others. Nothing else of a trace is summed as device time.
columns:
  run_id: The run.
  event_id: The event.
  device_id: The device.
  instruction_id: The HLO instruction.
  start_ps: Start since the run's profile start.
  end_ps: End, exclusive.
  self_ps: Duration without the events nested in it.
  idle_before_ps: Its start minus the latest end of the device's leaf ops before it, as main.ops has it.
  compute_before_ps: Of communication and copies, time of the device's compute before it, as main.ops has it.
  execution: Which execution of a program on the device; NULL where not known.
  phase: Phase, NULL outside of phases.
  step: Step, NULL outside of steps.
  category: The profiler's category of the instruction; NULL where it names none.
  is_communication: A collective, or the start or done of one.
  is_copy: A copy, or the start or done of an asynchronous op that is no collective.
  is_compute: Neither communication nor a copy.
---*/
SELECT
  o.run_id AS run_id,
  o.event_id AS event_id,
  o.device_id AS device_id,
  o.instruction_id AS instruction_id,
  o.start_ps AS start_ps,
  o.start_ps + o.duration_ps AS end_ps,
  o.self_ps AS self_ps,
  o.idle_before_ps AS idle_before_ps,
  o.compute_before_ps AS compute_before_ps,
  o.execution AS execution,
  o.phase AS phase,
  o.step AS step,
  i.category AS category,
  i.is_communication AS is_communication,
  i.is_copy AS is_copy,
  i.is_compute AS is_compute
FROM main.ops AS o
INNER JOIN models.instruction_kinds AS i ON o.run_id = i.run_id AND o.instruction_id = i.instruction_id
WHERE o.is_leaf AND o.device_id IS NOT NULL
