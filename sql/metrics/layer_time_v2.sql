/*---
metric: layer_time
version: 2
status: stable
unit: us
polarity: lower_is_better
grain: [run_id, phase, layer, part]
value: self_us
requires: >
  SELECT i.run_id FROM main.instructions AS i
  WHERE i.layer IS NOT NULL OR i.stage_layer IS NOT NULL OR i.part IS NOT NULL
description: >
  Self time of the leaf ops by transformer layer and part of the model, per step, mean over the devices that ran any of
  it; compute and communication apart, the rest being copies. In a pipeline the layer is that of the stage that the device
  is in. Ops that belong to no known layer or part are rows of their own, so that a phase adds up. Without steps the
  capture counts as one.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  layer: Transformer layer; NULL where not known.
  part: Part of the model; NULL where not known.
  self_us: Self time per device and step.
  compute_us: That of compute.
  communication_us: That of communication, waiting included.
  devices: Devices that ran any of it.
changed: >
  The layer of an op in a pipeline comes from its device's stage; version 1 knew none there, as all stages run one
  program.
---*/
WITH executed AS (
  SELECT
    o.run_id AS run_id,
    o.phase AS phase,
    o.device_id AS device_id,
    o.instruction_id AS instruction_id,
    CAST(SUM(o.self_ps) AS BIGINT) AS self_ps,
    CAST(SUM(CASE WHEN o.is_compute THEN o.self_ps ELSE 0 END) AS BIGINT) AS compute_ps,
    CAST(SUM(CASE WHEN o.is_communication THEN o.self_ps ELSE 0 END) AS BIGINT) AS communication_ps
  FROM models.instruction_time AS o
  GROUP BY o.run_id, o.phase, o.device_id, o.instruction_id
),

worked AS (
  SELECT
    e.run_id AS run_id,
    e.phase AS phase,
    e.device_id AS device_id,
    l.layer AS layer,
    l.part AS part,
    CAST(SUM(e.self_ps) AS BIGINT) AS self_ps,
    CAST(SUM(e.compute_ps) AS BIGINT) AS compute_ps,
    CAST(SUM(e.communication_ps) AS BIGINT) AS communication_ps
  FROM executed AS e
  INNER JOIN models.instruction_layers AS l
    ON e.run_id = l.run_id AND e.instruction_id = l.instruction_id AND e.device_id = l.device_id
  GROUP BY e.run_id, e.phase, e.device_id, l.layer, l.part
),

stepped AS (
  SELECT
    t.run_id AS run_id,
    t.phase AS phase,
    t.layer AS layer,
    t.part AS part,
    t.self_ps AS self_ps,
    t.compute_ps AS compute_ps,
    t.communication_ps AS communication_ps,
    COALESCE(s.steps, 1) AS steps
  FROM worked AS t
  LEFT JOIN models.phase_steps AS s
    ON
      t.run_id = s.run_id AND t.device_id = s.device_id
      AND COALESCE(t.phase, '') = COALESCE(s.phase, '')
),

known AS (
  SELECT k.run_id AS run_id
  FROM worked AS k
  WHERE k.layer IS NOT NULL OR k.part IS NOT NULL
  GROUP BY k.run_id
)

SELECT
  p.run_id AS run_id,
  p.phase AS phase,
  p.layer AS layer,
  p.part AS part,
  CAST(SUM(p.self_ps) AS DOUBLE) / CAST(SUM(p.steps) * 1000000 AS DOUBLE) AS self_us,
  CAST(SUM(p.compute_ps) AS DOUBLE) / CAST(SUM(p.steps) * 1000000 AS DOUBLE) AS compute_us,
  CAST(SUM(p.communication_ps) AS DOUBLE) / CAST(SUM(p.steps) * 1000000 AS DOUBLE) AS communication_us,
  COUNT(*) AS devices
FROM stepped AS p
INNER JOIN known AS n ON p.run_id = n.run_id
GROUP BY p.run_id, p.phase, p.layer, p.part
