/*---
description: >
  Executions and self time of each instruction's leaf ops on each device, by the phase of their step, by layer, and by
  what one of them costs.
---*/
WITH placed AS (
  SELECT
    run_id, o.device_id, o.phase, o.instruction_id, o.iteration, o.flops, o.model_flops, o.bytes_accessed, o.self_ps,
    COALESCE(s.is_timed, FALSE) AS is_timed
  FROM models.leaf_ops AS o
  LEFT JOIN models.run_steps AS s USING (run_id, step)
),

summed AS (
  SELECT
    run_id, device_id, phase, instruction_id, iteration, flops, model_flops, bytes_accessed,
    COUNT(*) AS ops,
    SUM(self_ps) AS self_ps,
    COUNT(*) FILTER (WHERE is_timed) AS timed_ops,
    COALESCE(SUM(self_ps) FILTER (WHERE is_timed), 0) AS timed_self_ps
  FROM placed
  GROUP BY run_id, device_id, phase, instruction_id, iteration, flops, model_flops, bytes_accessed
),

layered AS (
  SELECT
    run_id, device_id, t.phase, instruction_id, CASE
      WHEN l.layers_per_iteration IS NULL THEN l.first_layer
      ELSE l.first_layer + t.iteration * l.layers_per_iteration
    END AS layer, t.flops, t.model_flops, t.bytes_accessed, t.ops, t.self_ps, t.timed_ops, t.timed_self_ps
  FROM summed AS t
  LEFT JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id)
),

without_matrix_units AS (
  SELECT run_id, instruction_id, string_value AS arithmetic
  FROM main.instruction_stats
  WHERE name = 'arithmetic'
)

SELECT
  run_id, t.device_id, t.phase, instruction_id, t.layer, i.category, i.op_class, i.part,
  t.flops, -- Floating-point operations of each; NULL if unknown.
  t.model_flops, -- The same, without work that the compiler added.
  t.bytes_accessed, -- Memory traffic of each; NULL if unknown.
  -- The part of it in HBM; all of it if the profiler does not split it by memory.
  CASE
    WHEN i.given_bytes_accessed IS NULL AND t.bytes_accessed = COALESCE(i.bytes_accessed, t.bytes_accessed)
      THEN COALESCE(i.hbm_bytes_accessed, t.bytes_accessed)
    ELSE t.bytes_accessed
  END AS hbm_bytes_accessed,
  -- The part in memories on the chip; NULL if the profiler does not split it.
  CASE
    WHEN i.given_bytes_accessed IS NULL AND t.bytes_accessed = COALESCE(i.bytes_accessed, t.bytes_accessed)
      THEN i.on_chip_bytes_accessed
  END AS on_chip_bytes_accessed,
  -- Type whose peak applies to a matrix product: int8, fp8, or bf16 for all wider types. GPUs have f32 for kernels that
  -- say that they use no matrix units, and tf32 for other products of f32.
  CASE
    WHEN i.operand_dtype IN ('s8', 'u8') THEN 'int8'
    WHEN i.operand_dtype LIKE 'f8%' THEN 'fp8'
    WHEN i.operand_dtype = 'tf32' THEN 'tf32'
    WHEN d.backend = 'gpu' AND i.operand_dtype = 'f32' THEN COALESCE(f.arithmetic, 'tf32')
    WHEN i.operand_dtype IS NOT NULL THEN 'bf16'
  END AS product_type,
  CAST(SUM(t.ops) AS BIGINT) AS ops, -- Number of leaf ops.
  CAST(SUM(t.self_ps) AS BIGINT) AS self_ps, -- Their self time.
  CAST(SUM(t.timed_ops) AS BIGINT) AS timed_ops, -- Leaf ops in steps whose time is known (models.run_steps).
  CAST(SUM(t.timed_self_ps) AS BIGINT) AS timed_self_ps -- Their self time.
FROM layered AS t
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
LEFT JOIN main.devices AS d USING (run_id, device_id)
LEFT JOIN without_matrix_units AS f USING (run_id, instruction_id)
GROUP BY
  run_id, t.device_id, t.phase, instruction_id, t.layer, t.flops, t.model_flops, t.bytes_accessed, i.category,
  i.op_class, i.part, i.given_bytes_accessed, i.bytes_accessed, i.hbm_bytes_accessed, i.on_chip_bytes_accessed,
  i.operand_dtype, d.backend, f.arithmetic
