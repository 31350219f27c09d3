/*---
status: compatibility
unit: ratio
polarity: lower_is_better
grain: [run_id]
value: delay
ranges: {delay: [0, 1]}
description: >
  Reproduces CCL-Bench's straggler on GPUs with its faults, to explain a published number; use straggler_ranking
  instead.
notes: >
  It compares the ranks by the time of their NCCL kernels, so the rank for which the others wait has the least. Only
  files named like rank0_trace.json count, and only kernels of NCCL from version 2.19 on. Anything else has 0.
ccl_bench: straggler
---*/
WITH files AS (
  SELECT run_id, host
  FROM main.hosts
  WHERE REGEXP_MATCHES(file_name, '^rank.*_trace[.]json([.]gz)?$')
),

ranks AS (
  SELECT run_id, k.host, k.device_id, SUM(k.duration_ps) AS busy_ps
  FROM models.ccl_kernels AS k
  INNER JOIN files USING (run_id, host)
  WHERE REGEXP_MATCHES(k.lower_name, '^nccldevkernel_')
  GROUP BY run_id, k.host, k.device_id
),

spread AS (
  SELECT run_id, MIN(busy_ps) AS least_ps, MAX(busy_ps) AS most_ps
  FROM ranks
  GROUP BY run_id
  HAVING COUNT(*) > 1 AND MAX(busy_ps) > 0
)

SELECT
  run_id,
  COALESCE(CAST(s.most_ps - s.least_ps AS DOUBLE) / s.most_ps, 0) AS delay, -- Spread over the longest time.
  COALESCE(CAST(s.most_ps AS DOUBLE) / NULLIF(s.least_ps, 0), 0) AS slowdown -- Longest over shortest time.
FROM main.runs AS r
LEFT JOIN spread AS s USING (run_id)
WHERE r.format IN ('kineto', 'nsys')
