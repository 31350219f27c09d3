/*---
metric: op_time_share
version: 1
status: stable
unit: ratio
polarity: none
grain: [run_id, phase, category]
value: share
requires: SELECT o.run_id FROM main.ops AS o WHERE o.is_leaf AND o.device_id IS NOT NULL
description: >
  Share of the devices' op time by category of op: self time of the leaf ops of a category over that of all leaf ops of
  the phase, all devices together. XProf's hlo_stats sums another time, the device clock's stat of each event; the shares
  of the two agree within 0.1 % on a capture of four v6e chips.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  category: The profiler's category; NULL where it names none.
  share: Share of the self time.
  self_ms: Self time over all devices.
  ops: Number of ops.
changed: First version.
ccl_bench: dominant_kernel_concentration
---*/
WITH categories AS (
  SELECT
    o.run_id AS run_id,
    o.phase AS phase,
    o.category AS category,
    CAST(SUM(o.self_ps) AS BIGINT) AS self_ps,
    CAST(SUM(o.ops) AS BIGINT) AS ops
  FROM models.instruction_time AS o
  GROUP BY o.run_id, o.phase, o.category
),

compared AS (
  SELECT
    c.run_id AS run_id,
    c.phase AS phase,
    c.category AS category,
    c.self_ps AS self_ps,
    c.ops AS ops,
    SUM(c.self_ps) OVER (PARTITION BY c.run_id, c.phase) AS phase_ps
  FROM categories AS c
)

SELECT
  k.run_id AS run_id,
  k.phase AS phase,
  k.category AS category,
  CAST(k.self_ps AS DOUBLE) / CAST(k.phase_ps AS DOUBLE) AS share,
  CAST(k.self_ps AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS self_ms,
  k.ops AS ops
FROM compared AS k
WHERE k.phase_ps > 0
