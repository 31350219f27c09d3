/*---
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: busy_imbalance
needs: [recorded, several_devices, parallel_compute]
description: >
  Busy time of the busiest device over the mean of the devices that ran the phase; 1 is perfect balance. There is no
  row for one device.
notes: >
  Waiting in a collective is busy time, so the column for compute shows the imbalance for which ranks wait. A device
  that computes nothing in the whole capture, such as one that is only copied to, does not count.
ccl_bench: load_imbalance_ratio
---*/
WITH experts AS (
  SELECT run_id, t.phase, t.device_id, SUM(t.self_ps) AS moe_ps
  FROM models.instruction_time AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  WHERE i.part = 'moe' AND t.op_class = 'compute'
  GROUP BY run_id, t.phase, t.device_id
),

ranks AS (
  SELECT run_id, device_id
  FROM models.device_busy
  GROUP BY run_id, device_id
  HAVING SUM(compute_ps) > 0
),

loads AS (
  SELECT run_id, d.phase, d.busy_ps, d.compute_ps, COALESCE(e.moe_ps, 0) AS moe_ps
  FROM models.device_phases AS d
  INNER JOIN ranks USING (run_id, device_id)
  LEFT JOIN experts AS e ON d.run_id = e.run_id AND d.device_id = e.device_id AND d.phase IS NOT DISTINCT FROM e.phase
  LEFT JOIN models.predicted_runs AS g USING (run_id)
  WHERE g.is_predicted IS NULL
)

SELECT
  run_id, phase,
  MAX(busy_ps) * COUNT(*) / SUM(busy_ps) AS busy_imbalance, -- Largest busy time over the mean.
  -- Largest compute time over the mean; NULL without compute.
  MAX(compute_ps) * COUNT(*) / NULLIF(SUM(compute_ps), 0) AS compute_imbalance,
  -- The same for self time of the experts without communication; NULL without experts.
  MAX(moe_ps) * COUNT(*) / NULLIF(SUM(moe_ps), 0) AS moe_imbalance,
  COUNT(*) AS devices -- Devices that ran the phase and compute.
FROM loads
GROUP BY run_id, phase
HAVING COUNT(*) > 1 AND SUM(busy_ps) > 0
