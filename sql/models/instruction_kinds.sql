/*---
model: instruction_kinds
description: What an instruction does with a device's time - communicate, copy or compute.
columns:
  run_id: The run.
  instruction_id: The HLO instruction.
  category: The profiler's category of the instruction; NULL where it names none.
  is_communication: A collective, or the start or done of one.
  is_copy: A copy, or the start or done of an asynchronous op that is no collective.
  is_compute: Neither communication nor a copy.
---*/
SELECT
  i.run_id AS run_id,
  i.instruction_id AS instruction_id,
  i.category AS category,
  i.collective IS NOT NULL AS is_communication,
  i.collective IS NULL
  AND (i.async_role IS NOT NULL OR COALESCE(i.opcode, '') IN ('copy', 'copy-start', 'copy-done')) AS is_copy,
  i.collective IS NULL AND i.async_role IS NULL
  AND COALESCE(i.opcode, '') NOT IN ('copy', 'copy-start', 'copy-done') AS is_compute
FROM main.instructions AS i
