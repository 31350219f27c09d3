/*---
status: stable
unit: ratio
polarity: none
grain: [run_id, phase]
value: fraction
ranges: {fraction: [0, 1]}
needs: [experts]
description: >
  Share of the devices' busy time that the mixture of experts takes. A run without a known op of the experts has no row.
notes: >
  Its time is the self time of the ops of router and experts, and of the collectives that dispatch and combine tokens:
  those of the experts' part and all on axis ep. It is divided by the union of all leaf ops, all devices together.
ccl_bench: moe_fraction
---*/
WITH exchanges AS (
  SELECT run_id, event_id
  FROM models.communication_ops
  WHERE axis = 'ep'
  GROUP BY run_id, event_id
),

exchanged AS (
  SELECT run_id, o.device_id, o.phase, o.instruction_id, SUM(o.self_ps) AS self_ps
  FROM main.ops AS o
  INNER JOIN exchanges USING (run_id, event_id)
  WHERE o.is_leaf AND o.device_id IS NOT NULL
  GROUP BY run_id, o.device_id, o.phase, o.instruction_id
),

experts AS (
  SELECT run_id, t.device_id, t.phase, t.op_class, t.self_ps
  FROM models.instruction_time AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  WHERE i.part = 'moe'
  UNION ALL
  SELECT run_id, x.device_id, x.phase, a.op_class, x.self_ps
  FROM exchanged AS x
  INNER JOIN main.instructions AS a USING (run_id, instruction_id)
  WHERE COALESCE(a.part, '') <> 'moe'
),

summed AS (
  SELECT
    run_id, device_id, phase,
    SUM(self_ps) AS moe_ps,
    COALESCE(SUM(self_ps) FILTER (WHERE op_class = 'communication'), 0) AS communication_ps
  FROM experts
  GROUP BY run_id, device_id, phase
),

known AS (
  SELECT run_id
  FROM main.instructions
  WHERE part = 'moe'
  GROUP BY run_id
)

SELECT
  run_id, d.phase,
  SUM(COALESCE(m.moe_ps, 0)) / SUM(d.busy_ps) AS fraction, -- Share of the busy time.
  -- Share of ops that do not communicate.
  SUM(COALESCE(m.moe_ps - m.communication_ps, 0)) / SUM(d.busy_ps) AS compute_fraction,
  -- Share of dispatch and combine, including waiting.
  SUM(COALESCE(m.communication_ps, 0)) / SUM(d.busy_ps) AS communication_fraction,
  SUM(COALESCE(m.moe_ps, 0)) / 1e9 AS moe_ms, -- Self time over all devices.
  COUNT(*) AS devices -- Devices that ran the phase.
FROM models.device_phases AS d
INNER JOIN known USING (run_id)
LEFT JOIN summed AS m ON d.run_id = m.run_id AND d.device_id = m.device_id AND d.phase IS NOT DISTINCT FROM m.phase
GROUP BY run_id, d.phase
HAVING SUM(d.busy_ps) > 0
