/*---
metric: moe_fraction
version: 1
status: stable
unit: ratio
polarity: none
grain: [run_id, phase]
value: fraction
requires: SELECT i.run_id FROM main.instructions AS i WHERE i.part = 'moe'
description: >
  Share of the devices' busy time that goes to the mixture of experts: self time of the ops of router and experts, and of
  the collectives that dispatch and combine tokens, which are those of the experts' part and all on axis ep; over the
  union of all leaf ops, all devices together. A run in which no op is known to be of the experts' part has no row.
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none, and in a capture without steps.
  fraction: Share of the busy time.
  compute_fraction: That of ops which do not communicate.
  communication_fraction: That of dispatch and combine, waiting included.
  moe_ms: Self time over all devices.
  devices: Devices that ran the phase.
changed: First version.
ccl_bench: moe_fraction
---*/
WITH exchanges AS (
  SELECT
    c.run_id AS run_id,
    c.event_id AS event_id
  FROM models.communication_ops AS c
  WHERE c.axis = 'ep'
  GROUP BY c.run_id, c.event_id
),

exchanged AS (
  SELECT
    o.run_id AS run_id,
    o.device_id AS device_id,
    o.phase AS phase,
    o.instruction_id AS instruction_id,
    CAST(SUM(o.self_ps) AS BIGINT) AS self_ps
  FROM main.ops AS o
  INNER JOIN exchanges AS e ON o.run_id = e.run_id AND o.event_id = e.event_id
  WHERE o.is_leaf AND o.device_id IS NOT NULL
  GROUP BY o.run_id, o.device_id, o.phase, o.instruction_id
),

experts AS (
  SELECT
    t.run_id AS run_id,
    t.device_id AS device_id,
    t.phase AS phase,
    t.is_communication AS is_communication,
    t.self_ps AS self_ps
  FROM models.instruction_time AS t
  INNER JOIN main.instructions AS i ON t.run_id = i.run_id AND t.instruction_id = i.instruction_id
  WHERE i.part = 'moe'
  UNION ALL
  SELECT
    x.run_id AS run_id,
    x.device_id AS device_id,
    x.phase AS phase,
    a.collective IS NOT NULL AS is_communication,
    x.self_ps AS self_ps
  FROM exchanged AS x
  INNER JOIN main.instructions AS a ON x.run_id = a.run_id AND x.instruction_id = a.instruction_id
  WHERE COALESCE(a.part, '') <> 'moe'
),

summed AS (
  SELECT
    s.run_id AS run_id,
    s.device_id AS device_id,
    s.phase AS phase,
    CAST(SUM(s.self_ps) AS BIGINT) AS moe_ps,
    CAST(SUM(CASE WHEN s.is_communication THEN s.self_ps ELSE 0 END) AS BIGINT) AS communication_ps
  FROM experts AS s
  GROUP BY s.run_id, s.device_id, s.phase
),

known AS (
  SELECT k.run_id AS run_id
  FROM main.instructions AS k
  WHERE k.part = 'moe'
  GROUP BY k.run_id
)

SELECT
  d.run_id AS run_id,
  d.phase AS phase,
  CAST(SUM(COALESCE(m.moe_ps, 0)) AS DOUBLE) / CAST(SUM(d.busy_ps) AS DOUBLE) AS fraction,
  CAST(SUM(COALESCE(m.moe_ps - m.communication_ps, 0)) AS DOUBLE) / CAST(SUM(d.busy_ps) AS DOUBLE) AS compute_fraction,
  CAST(SUM(COALESCE(m.communication_ps, 0)) AS DOUBLE) / CAST(SUM(d.busy_ps) AS DOUBLE) AS communication_fraction,
  CAST(SUM(COALESCE(m.moe_ps, 0)) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS moe_ms,
  COUNT(*) AS devices
FROM models.device_phases AS d
INNER JOIN known AS n ON d.run_id = n.run_id
LEFT JOIN summed AS m
  ON
    d.run_id = m.run_id AND d.device_id = m.device_id
    AND COALESCE(d.phase, '') = COALESCE(m.phase, '')
GROUP BY d.run_id, d.phase
HAVING SUM(d.busy_ps) > 0
