/*---
model: instruction_costs
inline: true
description: >
  What one execution of each instruction costs, if known: as given at ingest, or else as the profiler states. The
  compiler does not know the cost of a custom call, such as a Pallas kernel, so a stated 0 there means unknown.
---*/
SELECT
  run_id, instruction_id,
  -- Floating-point operations; NULL if unknown.
  COALESCE(given_flops, NULLIF(flops, CASE WHEN opcode = 'custom-call' THEN 0 END)) AS flops,
  -- Floating-point operations without work that the compiler added.
  COALESCE(given_flops, NULLIF(model_flops, CASE WHEN opcode = 'custom-call' THEN 0 END)) AS model_flops,
  -- Memory traffic; NULL if unknown.
  COALESCE(given_bytes_accessed, NULLIF(bytes_accessed, CASE WHEN opcode = 'custom-call' THEN 0 END)) AS bytes_accessed,
  -- Type whose peak applies to a matrix product: int8, fp8, or bf16 for all wider types.
  CASE
    WHEN operand_dtype IN ('s8', 'u8') THEN 'int8'
    WHEN operand_dtype LIKE 'f8%' THEN 'fp8'
    WHEN operand_dtype IS NOT NULL THEN 'bf16'
  END AS product_type
FROM main.instructions
