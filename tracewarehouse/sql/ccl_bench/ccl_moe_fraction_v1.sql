/*---
status: compatibility
unit: "%"
polarity: none
grain: [run_id]
value: fraction_percent
description: >
  Reproduces CCL-Bench's moe_fraction on GPUs with its faults, to explain a published number; use moe_fraction instead.
notes: >
  It divides the duration of kernels with a word such as moe, expert, topk or dispatch in their names by that of all
  kernels. The products of experts have other names, such as _matmul_ogs_, and a sort of CUB dispatches too.
ccl_bench: moe_fraction
---*/
WITH kernels AS (
  SELECT
    run_id, duration_ps,
    REGEXP_MATCHES(lower_name, 'moe|expert|routing|gating|dispatchkernel|combinekernel')
    OR (NOT is_nsys AND REGEXP_MATCHES(lower_name, 'gate_|topk|grouped_gemm|dispatch|combine'))
    OR (is_nsys AND REGEXP_MATCHES(lower_name, '(^|[^a-z0-9_])(gate|topk)($|[^a-z0-9_])')) AS is_moe
  FROM models.ccl_kernels
)

SELECT
  run_id,
  -- Share in percent.
  COALESCE(SUM(duration_ps) FILTER (WHERE is_moe), 0) * 100 / SUM(duration_ps) AS fraction_percent,
  COUNT(*) FILTER (WHERE is_moe) AS kernels -- Kernels with such a word.
FROM kernels
GROUP BY run_id
HAVING SUM(duration_ps) > 0
