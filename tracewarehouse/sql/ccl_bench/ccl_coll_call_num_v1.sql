/*---
status: compatibility
unit: "1"
polarity: none
grain: [run_id]
value: calls
description: >
  Reproduces CCL-Bench's coll_call_num on GPUs with its faults, to explain a published number; use collective_count
  instead.
notes: >
  It counts kernels by the names of NCCL from version 2.19 on, in the file kineto_trace_0.json alone. Files of other
  names, and kernels of older versions, count as 0.
ccl_bench: coll_call_num
---*/
WITH files AS (
  SELECT run_id, host
  FROM main.hosts
  WHERE REGEXP_MATCHES(file_name, '^kineto_trace_0[.]json([.]gz)?$')
),

counted AS (
  SELECT run_id, COUNT(*) AS calls
  FROM models.ccl_kernels AS k
  INNER JOIN files USING (run_id, host)
  WHERE REGEXP_MATCHES(k.name, '^ncclDevKernel_(AllReduce|ReduceScatter|AllGather|Broadcast|Reduce|SendRecv)')
  GROUP BY run_id
)

SELECT
  run_id,
  COALESCE(c.calls, 0) AS calls -- Kernels of the first rank.
FROM main.runs AS r
LEFT JOIN counted AS c USING (run_id)
WHERE r.format IN ('kineto', 'nsys')
