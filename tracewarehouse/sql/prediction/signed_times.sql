/*---
description: >
  Time of one execution of each op in recorded and predicted runs, with its signature. Ops of two runs with one
  signature are the same. A collective takes the shortest time over its ranks, because the others wait.
notes: >
  Halves of asynchronous ops have no row, because the time of a done depends on what ran before it, and neither have
  kernels of predicted runs whose time was given or recorded.
---*/
WITH shortest AS (
  SELECT run_id, instruction_id, instance, MIN(link) AS link, MIN(end_ps - start_ps) AS shortest_ps
  FROM main.collectives
  WHERE NOT is_async AND instance IS NOT NULL AND end_ps IS NOT NULL
  GROUP BY run_id, instruction_id, instance
),

collective AS (
  SELECT run_id, instruction_id, MIN(link) AS link, SUM(shortest_ps) AS shortest_ps, COUNT(*) AS executions
  FROM shortest
  GROUP BY run_id, instruction_id
),

executed AS (
  SELECT run_id, phase, instruction_id, SUM(self_ps) AS self_ps, SUM(ops) AS ops
  FROM models.instruction_time
  GROUP BY run_id, phase, instruction_id
),

given AS (
  SELECT run_id, instruction_id
  FROM main.ops
  WHERE basis = 'kernel_measured'
  GROUP BY run_id, instruction_id
)

SELECT
  run_id, e.phase, instruction_id,
  CAST(i.program_id AS VARCHAR) AS program_id, -- The compiled program.
  i.name, -- Name of the instruction.
  i.signature, -- Opcode, types, shapes and memory spaces.
  -- The kind of collective, product, kernel, copy, or vector for all other ops.
  CASE
    WHEN i.op_class = 'communication' THEN i.collective
    WHEN i.op_class = 'copy' THEN 'copy'
    WHEN i.opcode = 'custom-call' THEN 'kernel'
    WHEN i.operand_dtype IS NOT NULL OR i.category LIKE 'convolution%' THEN 'product'
    ELSE 'vector'
  END AS op_kind,
  -- Of a collective: small for less than 1 MiB, die within a chip. Of a kernel its name without numbers. Of a vector op:
  -- VMEM if all of it is in the core's own memory. NULL for all others.
  CASE
    WHEN i.op_class = 'communication' AND i.message_bytes < 1048576 AND c.link = 'die' THEN 'small die'
    WHEN i.op_class = 'communication' AND i.message_bytes < 1048576 THEN 'small'
    WHEN i.op_class = 'communication' AND c.link = 'die' THEN 'die'
    WHEN i.op_class IN ('communication', 'copy') THEN NULL
    WHEN i.opcode = 'custom-call' THEN REGEXP_EXTRACT(i.name, '^(.*?)([.][0-9]+)*$', 1)
    WHEN i.operand_dtype IS NOT NULL OR i.category LIKE 'convolution%' THEN NULL
    WHEN i.signature NOT LIKE '%hbm:%' THEN 'VMEM'
  END AS variant,
  CAST(e.ops AS BIGINT) AS ops, -- Executions, over all devices.
  CAST(COALESCE(c.shortest_ps, e.self_ps) AS BIGINT) AS time_ps, -- Their time.
  CAST(COALESCE(c.executions, e.ops) AS BIGINT) AS timed_ops, -- Executions that have this time, a collective's ranks once.
  CAST(e.self_ps AS BIGINT) AS self_ps -- Self time of all executions, with waiting.
FROM executed AS e
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
LEFT JOIN collective AS c USING (run_id, instruction_id)
LEFT JOIN given AS g USING (run_id, instruction_id)
WHERE i.async_role IS NULL AND g.run_id IS NULL
