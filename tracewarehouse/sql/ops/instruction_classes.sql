/*---
description: >
  What the device does in each instruction, as the parts of a step and the colours of charts tell it: communication, a
  copy, an attention kernel, a matrix product, or other computing.
notes: >
  An attention kernel is known by its name, on TPUs and GPUs. Attention that a framework composes of products counts as
  products, unless a scope names it, such as jax.nn.dot_product_attention or scaled_dot_product_attention. A custom
  fusion, such as one of the CPU's library, computes what its path ends in. The TPU compiler writes a product of one row
  as a multiplication whose terms are added up.
---*/
WITH named AS (
  SELECT
    run_id, instruction_id, op_class, opcode, operand_dtype,
    opcode IS NULL OR opcode IN ('custom-call', 'fusion') AS is_kernel,
    LOWER(name) AS name,
    COALESCE(LOWER(category), '') AS category,
    COALESCE(LOWER(op_name), '') AS scope
  FROM main.instructions
)

SELECT
  run_id, instruction_id,
  -- communication, copy, attention, matrix (a product or a fusion around one), or other compute.
  CASE
    WHEN op_class IN ('communication', 'copy') THEN op_class
    WHEN
      is_kernel
      AND (
        REGEXP_MATCHES(name, '(flash|paged|splash|ring)_?(attention|attn|mha|mqa|fwd|mla)|fmha|attn_fwd')
        OR REGEXP_MATCHES(name, '(^|[ /_])(rpa|mha|mla)([-_. ]|$)')
        OR category = 'attention'
      )
      THEN 'attention'
    WHEN
      opcode = 'custom-call'
      AND REGEXP_MATCHES(scope, '(flash|paged|splash|ring)_?(attention|attn|mha|mqa|fwd|mla)|fmha|attn_fwd')
      THEN 'attention'
    WHEN REGEXP_MATCHES(scope, '(^|/)(scaled_)?dot_product_attention') THEN 'attention'
    WHEN
      operand_dtype IS NOT NULL
      OR opcode IN ('dot', 'convolution', 'ragged-dot')
      OR (is_kernel AND REGEXP_MATCHES(name, 'convolution|dot|gemm|matmul|cublas|nvjet|cijk_|bmm_mx'))
      OR (is_kernel AND REGEXP_MATCHES(category, 'convolution|dot|gemm|matmul'))
      OR (
        REGEXP_MATCHES(scope, '/dot_general$')
        AND (category = 'custom fusion' OR (opcode = 'fusion' AND name LIKE 'multiply_reduce%'))
      )
      THEN 'matrix'
    ELSE 'other compute'
  END AS class
FROM named
