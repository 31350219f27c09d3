/*---
description: >
  What each execution of a program of the experiment calibrate shows. A program is named
  jit_micro.<kind>.<class>.<what>.
notes: >
  An execution of a collective shows the shortest time over its ranks. A chain of fusions shows its inner ones, whose
  operands and results are in the same memory. A program of the host shows how long the device was idle before it. The
  program with one argument also shows its op, a fusion in HBM. Any other program shows its longest op.
---*/
WITH ops AS (
  SELECT
    run_id, device_id, module, execution, self_ps, idle_before_ps,
    REGEXP_EXTRACT(module, '^jit_micro[.]([a-z]+)[.].*$', 1) AS kind,
    ROW_NUMBER() OVER (PARTITION BY run_id, device_id, execution ORDER BY start_ps, event_id) AS place,
    ROW_NUMBER() OVER (PARTITION BY run_id, device_id, execution ORDER BY start_ps DESC, event_id DESC) AS from_end,
    DENSE_RANK() OVER (PARTITION BY run_id, device_id, module ORDER BY execution) AS turn
  FROM models.leaf_ops
  WHERE module LIKE 'jit_micro.%'
),

shown AS (
  SELECT run_id, device_id, module, kind, self_ps AS time_ps
  FROM ops
  WHERE kind = 'fusion' AND place > 1 AND from_end > 1
  UNION ALL
  SELECT run_id, device_id, module, kind, idle_before_ps AS time_ps
  FROM ops
  WHERE kind = 'host' AND place = 1 AND turn > 1 AND idle_before_ps IS NOT NULL
  UNION ALL
  SELECT run_id, device_id, 'jit_micro.fusion.hbm.8x128' AS module, 'fusion' AS kind, self_ps AS time_ps
  FROM ops
  WHERE module = 'jit_micro.host.arguments.1'
  UNION ALL
  SELECT run_id, device_id, module, kind, MAX(self_ps) AS time_ps
  FROM ops
  WHERE kind NOT IN ('fusion', 'host', 'collective')
  GROUP BY run_id, device_id, module, execution, kind
)

SELECT
  run_id,
  device_id, -- The device; of a collective the first of its ranks.
  module AS program, -- Name of the program.
  kind, -- collective, product, fusion, copy, attention or host.
  REGEXP_EXTRACT(module, '^jit_micro[.][a-z]+[.]([^.]*)[.].*$', 1) AS class, -- What is measured of the kind.
  CAST(NULL AS VARCHAR) AS axis, -- Mesh axes of a collective.
  REGEXP_EXTRACT(module, '^jit_micro[.][a-z]+[.][^.]*[.](.*)$', 1) AS what, -- Its size.
  time_ps -- Time that the execution shows.
FROM shown
UNION ALL
SELECT
  run_id,
  MIN(c.device_id) AS device_id,
  MIN(i.module) AS program,
  'collective' AS kind,
  MIN(c.kind) AS class,
  MIN(c.axis) AS axis,
  CAST(MAX(c.message_bytes) AS VARCHAR) AS what,
  MIN(c.end_ps - c.start_ps) AS time_ps
FROM main.collectives AS c
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
WHERE i.module LIKE 'jit_micro.%' AND NOT c.is_partial AND c.window_source <> 'fused op'
GROUP BY run_id, c.instance
HAVING MIN(c.end_ps - c.start_ps) IS NOT NULL
