/*---
model: instruction_costs
inline: true
description: >
  What one execution of each instruction costs, where that is known: as told at ingest, else as the profiler states it.
  The compiler knows no cost of a custom call, such as a Pallas kernel: where the profiler states 0 of one, it is not
  known.
---*/
SELECT
  run_id, -- The run.
  instruction_id, -- The HLO instruction.
  -- Floating-point operations; NULL where not known.
  COALESCE(given_flops, NULLIF(flops, CASE WHEN opcode = 'custom-call' THEN 0 END)) AS flops,
  -- The same without work that the compiler added.
  COALESCE(given_flops, NULLIF(model_flops, CASE WHEN opcode = 'custom-call' THEN 0 END)) AS model_flops,
  -- Memory traffic; NULL where not known.
  COALESCE(given_bytes_accessed, NULLIF(bytes_accessed, CASE WHEN opcode = 'custom-call' THEN 0 END)) AS bytes_accessed,
  -- Of a matrix product, the type whose peak it has: int8, fp8 or bf16, which stands for all wider ones.
  CASE
    WHEN operand_dtype IN ('s8', 'u8') THEN 'int8'
    WHEN operand_dtype LIKE 'f8%' THEN 'fp8'
    WHEN operand_dtype IS NOT NULL THEN 'bf16'
  END AS product_type
FROM main.instructions
