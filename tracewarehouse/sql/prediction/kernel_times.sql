/*---
parameters: [runs]
reads_runs: [runs]
description: >
  How long the Pallas kernels of each run took, by what they do, on all devices together. A percentile is by nearest rank.
---*/
WITH kernels AS (
  SELECT run_id, instruction_id, signature, name
  FROM main.instructions
  WHERE LIST_CONTAINS(runs, run_id) AND signature LIKE '% custom-call:tpu_custom_call %' AND async_role IS NULL
),

executed AS (
  SELECT
    run_id, k.signature, k.name, o.self_ps,
    CUME_DIST() OVER (PARTITION BY run_id, k.signature ORDER BY o.self_ps) AS quantile
  FROM main.ops AS o
  INNER JOIN kernels AS k USING (run_id, instruction_id)
  WHERE o.is_leaf AND o.self_ps > 0
)

SELECT
  run_id,
  signature, -- What the kernel does: opcode, name, types, shapes and memory spaces.
  MIN(name) AS name, -- Name of an instruction that is the kernel.
  MIN(self_ps) FILTER (WHERE quantile >= 0.5) / 1e6 AS us, -- Median of one execution.
  MIN(self_ps) FILTER (WHERE quantile >= 0.1) / 1e6 AS low_us, -- 10th percentile.
  MIN(self_ps) FILTER (WHERE quantile >= 0.9) / 1e6 AS high_us, -- 90th percentile.
  COUNT(*) AS n -- Executions.
FROM executed
GROUP BY run_id, signature
