/*---
metric: load_imbalance
version: 1
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: busy_imbalance
requires: SELECT o.run_id FROM main.ops AS o WHERE o.is_leaf AND o.device_id IS NOT NULL
description: >
  Busy time of the busiest device over the mean of the devices that ran the phase; 1 is balance. Waiting in a collective
  is busy time, so the column for compute shows imbalance that ranks wait out. There is no row for one device.
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none, and in a capture without steps.
  busy_imbalance: Largest busy time over the mean.
  compute_imbalance: The same of compute time; NULL without compute.
  moe_imbalance: The same of self time of the experts' part without communication; NULL without experts.
  devices: Devices that ran the phase.
changed: First version.
ccl_bench: load_imbalance_ratio
---*/
WITH experts AS (
  SELECT
    t.run_id AS run_id,
    t.phase AS phase,
    t.device_id AS device_id,
    CAST(SUM(t.compute_ps) AS BIGINT) AS moe_ps
  FROM models.part_time AS t
  WHERE t.part = 'moe'
  GROUP BY t.run_id, t.phase, t.device_id
),

loads AS (
  SELECT
    d.run_id AS run_id,
    d.phase AS phase,
    d.busy_ps AS busy_ps,
    d.compute_ps AS compute_ps,
    COALESCE(e.moe_ps, 0) AS moe_ps
  FROM models.device_phases AS d
  LEFT JOIN experts AS e
    ON
      d.run_id = e.run_id AND d.device_id = e.device_id
      AND COALESCE(d.phase, '') = COALESCE(e.phase, '')
)

SELECT
  l.run_id AS run_id,
  l.phase AS phase,
  CAST(MAX(l.busy_ps) * COUNT(*) AS DOUBLE) / CAST(SUM(l.busy_ps) AS DOUBLE) AS busy_imbalance,
  CAST(MAX(l.compute_ps) * COUNT(*) AS DOUBLE) / CAST(NULLIF(SUM(l.compute_ps), 0) AS DOUBLE) AS compute_imbalance,
  CAST(MAX(l.moe_ps) * COUNT(*) AS DOUBLE) / CAST(NULLIF(SUM(l.moe_ps), 0) AS DOUBLE) AS moe_imbalance,
  COUNT(*) AS devices
FROM loads AS l
GROUP BY l.run_id, l.phase
HAVING COUNT(*) > 1 AND SUM(l.busy_ps) > 0
