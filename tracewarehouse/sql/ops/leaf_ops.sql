/*---
inline: true
description: >
  The ops that a device itself executes: events of its op line, without the containers (while, conditional, call) that
  hold others. The sum of busy_ps is the time in which the device was busy.
notes: >
  Sum these alone as device time: main.ops has every event of every line, and modules, loops and asynchronous copies
  cover the same time again. Costs are those given at ingest, else what the profiler states on the event of the op, else
  what it states on the instruction. The compiler does not know the cost of a custom call, such as a Pallas kernel, so a
  stated 0 means unknown there.
---*/
SELECT
  run_id, o.event_id, o.device_id, instruction_id,
  i.name, -- Name of the instruction, such as fusion.12.
  i.module, -- Program (HLO module) of the instruction; NULL where not known.
  i.opcode, -- HLO opcode; NULL where not known.
  o.start_ps, -- Start since the run's profile start.
  o.start_ps + o.duration_ps AS end_ps, -- End, exclusive.
  o.duration_ps, -- Duration, with the events nested in it.
  o.self_ps, -- Duration without the events nested in it.
  -- Part of its duration in which no leaf op that began earlier runs, on all streams of the device.
  o.duration_ps - o.overlap_ps AS busy_ps,
  o.duration_ps - o.class_overlap_ps AS class_busy_ps, -- The same, among the ops of its op_class.
  o.idle_before_ps, -- Time right before it in which the device ran no leaf op; NULL for the device's first.
  o.execution, o.iteration, o.phase, o.step, i.part,
  i.source, -- Source line, as file:line; NULL where not known.
  i.category,
  -- Floating-point operations; NULL if unknown.
  COALESCE(
    i.given_flops, NULLIF(o.flops, CASE WHEN i.opcode = 'custom-call' THEN 0 END),
    NULLIF(i.flops, CASE WHEN i.opcode = 'custom-call' THEN 0 END)
  ) AS flops,
  -- Floating-point operations without work that the compiler added.
  COALESCE(
    i.given_flops, NULLIF(o.model_flops, CASE WHEN i.opcode = 'custom-call' THEN 0 END),
    NULLIF(i.model_flops, CASE WHEN i.opcode = 'custom-call' THEN 0 END)
  ) AS model_flops,
  -- Memory traffic; NULL if unknown.
  COALESCE(
    i.given_bytes_accessed, NULLIF(o.bytes_accessed, CASE WHEN i.opcode = 'custom-call' THEN 0 END),
    NULLIF(i.bytes_accessed, CASE WHEN i.opcode = 'custom-call' THEN 0 END)
  ) AS bytes_accessed,
  i.op_class -- What the device does in it - communication, copy or compute.
FROM main.ops AS o
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
WHERE o.is_leaf AND o.device_id IS NOT NULL
