/*---
model: instruction_costs
inline: true
description: >
  What one execution of each instruction costs, if known: as given at ingest, else as the profiler states of the
  instruction, else as it states of its events. The compiler does not know the cost of a custom call, such as a Pallas
  kernel, so a stated 0 there means unknown.
---*/
WITH stated AS (
  SELECT
    run_id, instruction_id, operand_dtype, given_flops, given_bytes_accessed, hbm_bytes_accessed,
    on_chip_bytes_accessed,
    NULLIF(COALESCE(flops, event_flops), CASE WHEN opcode = 'custom-call' THEN 0 END) AS stated_flops,
    NULLIF(COALESCE(model_flops, event_model_flops), CASE WHEN opcode = 'custom-call' THEN 0 END) AS stated_model_flops,
    NULLIF(COALESCE(bytes_accessed, event_bytes_accessed), CASE WHEN opcode = 'custom-call' THEN 0 END) AS stated_bytes
  FROM main.instructions
)

SELECT
  run_id, instruction_id,
  COALESCE(given_flops, stated_flops) AS flops, -- Floating-point operations; NULL if unknown.
  -- Floating-point operations without work that the compiler added.
  COALESCE(given_flops, stated_model_flops) AS model_flops,
  COALESCE(given_bytes_accessed, stated_bytes) AS bytes_accessed, -- Memory traffic; NULL if unknown.
  -- Traffic of HBM alone; all traffic if it was given or the profiler does not split it by memory.
  CASE
    WHEN given_bytes_accessed IS NULL AND stated_bytes IS NOT NULL THEN COALESCE(hbm_bytes_accessed, stated_bytes)
    ELSE given_bytes_accessed
  END AS hbm_bytes_accessed,
  -- Traffic of memories on the chip; NULL if the profiler does not split it.
  CASE WHEN given_bytes_accessed IS NULL AND stated_bytes IS NOT NULL THEN on_chip_bytes_accessed END
    AS on_chip_bytes_accessed,
  -- Type whose peak applies to a matrix product: int8, fp8, or bf16 for all wider types.
  CASE
    WHEN operand_dtype IN ('s8', 'u8') THEN 'int8'
    WHEN operand_dtype LIKE 'f8%' THEN 'fp8'
    WHEN operand_dtype IS NOT NULL THEN 'bf16'
  END AS product_type
FROM stated
