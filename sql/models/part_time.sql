/*---
model: part_time
description: Self time of the leaf ops by phase, device, layer and part of the model.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  device_id: The device.
  layer: Transformer layer; NULL where not known.
  part: Part of the model; NULL where not known.
  self_ps: Self time of all ops.
  compute_ps: That of compute.
  communication_ps: That of communication.
---*/
SELECT
  t.run_id AS run_id,
  t.phase AS phase,
  t.device_id AS device_id,
  i.layer AS layer,
  i.part AS part,
  CAST(SUM(t.self_ps) AS BIGINT) AS self_ps,
  CAST(SUM(CASE WHEN t.is_compute THEN t.self_ps ELSE 0 END) AS BIGINT) AS compute_ps,
  CAST(SUM(CASE WHEN t.is_communication THEN t.self_ps ELSE 0 END) AS BIGINT) AS communication_ps
FROM models.instruction_time AS t
INNER JOIN main.instructions AS i ON t.run_id = i.run_id AND t.instruction_id = i.instruction_id
GROUP BY t.run_id, t.phase, t.device_id, i.layer, i.part
