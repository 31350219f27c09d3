/*---
status: experimental
unit: ratio
polarity: none
grain: [run_id, phase, kernel, category]
value: share
ranges: {share: [0, 1]}
needs: [timed_ops]
description: >
  Self time of the devices' leaf ops by kernel. A kernel is all ops of one category whose names differ in their numbers
  alone, such as fusion.7 and fusion.12. The shares of a phase add up to 1.
---*/
WITH executed AS (
  SELECT
    run_id, phase, category, instruction_id,
    MIN(layer) AS first_layer,
    MAX(layer) AS last_layer,
    SUM(self_ps) AS self_ps,
    SUM(ops) AS ops
  FROM models.instruction_time
  GROUP BY run_id, phase, category, instruction_id
),

named AS (
  SELECT
    run_id, e.phase, e.category, instruction_id, i.op_class, i.op_name, i.source, e.first_layer, e.last_layer,
    e.self_ps, e.ops,
    REGEXP_EXTRACT(i.name, '^(.*?)([.][0-9]+)*$', 1) AS kernel
  FROM executed AS e
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
),

-- what is said of a kernel is that of its instruction that takes most time
kernels AS (
  SELECT
    run_id, phase, kernel, category, op_class, op_name, source,
    MIN(first_layer) OVER (PARTITION BY run_id, phase, kernel, category) AS first_layer,
    MAX(last_layer) OVER (PARTITION BY run_id, phase, kernel, category) AS last_layer,
    COUNT(*) OVER (PARTITION BY run_id, phase, kernel, category) AS instructions,
    SUM(self_ps) OVER (PARTITION BY run_id, phase, kernel, category) AS self_ps,
    SUM(ops) OVER (PARTITION BY run_id, phase, kernel, category) AS ops,
    ROW_NUMBER() OVER (PARTITION BY run_id, phase, kernel, category ORDER BY self_ps DESC, instruction_id) AS position
  FROM named
),

compared AS (
  SELECT
    * EXCLUDE (position),
    SUM(self_ps) OVER (PARTITION BY run_id, phase) AS phase_ps,
    ROW_NUMBER() OVER (PARTITION BY run_id, phase ORDER BY self_ps DESC, kernel, category) AS place
  FROM kernels
  WHERE position = 1
)

SELECT
  run_id, phase,
  kernel, -- Name of the ops without the numbers at its end.
  category,
  self_ps / phase_ps AS share, -- Share of the phase's self time.
  place, -- Place in the phase, 1 for the kernel that takes most time.
  self_ps / 1e9 AS self_ms, -- Self time over all devices.
  self_ps / (ops * 1e6) AS mean_us, -- Mean self time of an op.
  CAST(ops AS BIGINT) AS ops, -- Number of ops.
  instructions, -- Number of instructions.
  op_class,
  first_layer, -- First transformer layer that it works on; NULL where not known.
  last_layer, -- Last one.
  op_name, -- Name path of the instruction that takes most of the time; NULL where not known.
  source -- Source line of that instruction; NULL where not known.
FROM compared
WHERE phase_ps > 0
