/*---
status: stable
unit: us
polarity: lower_is_better
grain: [run_id, phase, layer, part]
value: self_us
needs: [layers]
description: >
  Self time of the leaf ops by transformer layer and part of the model, per step, as the mean over the devices that ran
  any of it. Compute and communication have columns of their own. The rest is copies.
notes: >
  In a pipeline, the layer is that of the device's stage. Ops without a known layer or part have rows of their own, so
  that a phase adds up. Without steps, the capture counts as one.
---*/
WITH worked AS (
  SELECT
    run_id, phase, device_id, layer, part,
    SUM(self_ps) AS self_ps,
    COALESCE(SUM(self_ps) FILTER (WHERE op_class = 'compute'), 0) AS compute_ps,
    COALESCE(SUM(self_ps) FILTER (WHERE op_class = 'communication'), 0) AS communication_ps
  FROM models.instruction_time
  GROUP BY run_id, phase, device_id, layer, part
),

stepped AS (
  SELECT t.run_id, t.phase, t.layer, t.part, t.self_ps, t.compute_ps, t.communication_ps, COALESCE(s.steps, 1) AS steps
  FROM worked AS t
  LEFT JOIN models.phase_steps AS s
    ON t.run_id = s.run_id AND t.device_id = s.device_id AND t.phase IS NOT DISTINCT FROM s.phase
),

known AS (
  SELECT run_id
  FROM worked
  WHERE layer IS NOT NULL OR part IS NOT NULL
  GROUP BY run_id
)

SELECT
  run_id, p.phase, p.layer, p.part,
  SUM(p.self_ps) / (SUM(p.steps) * 1e6) AS self_us, -- Self time per device and step.
  SUM(p.compute_ps) / (SUM(p.steps) * 1e6) AS compute_us, -- Self time of compute ops.
  SUM(p.communication_ps) / (SUM(p.steps) * 1e6) AS communication_us, -- Self time of communication, including waiting.
  COUNT(*) AS devices -- Devices that ran any such op.
FROM stepped AS p
INNER JOIN known USING (run_id)
GROUP BY run_id, p.phase, p.layer, p.part
