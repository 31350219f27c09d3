/*---
model: part_time
description: Self time of the leaf ops by phase, device, layer and part of the model.
---*/
SELECT
  run_id, t.phase, t.device_id, i.layer, i.part,
  CAST(SUM(t.self_ps) AS BIGINT) AS self_ps, -- Self time of all ops.
  -- Self time of compute.
  CAST(COALESCE(SUM(t.self_ps) FILTER (WHERE t.op_class = 'compute'), 0) AS BIGINT) AS compute_ps,
  -- Self time of communication.
  CAST(COALESCE(SUM(t.self_ps) FILTER (WHERE t.op_class = 'communication'), 0) AS BIGINT) AS communication_ps
FROM models.instruction_time AS t
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
GROUP BY run_id, t.phase, t.device_id, i.layer, i.part
