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
  o.run_id AS run_id,
  o.phase AS phase,
  o.device_id AS device_id,
  i.layer AS layer,
  i.part AS part,
  CAST(SUM(o.self_ps) AS BIGINT) AS self_ps,
  CAST(SUM(CASE WHEN o.is_compute THEN o.self_ps ELSE 0 END) AS BIGINT) AS compute_ps,
  CAST(SUM(CASE WHEN o.is_communication THEN o.self_ps ELSE 0 END) AS BIGINT) AS communication_ps
FROM models.leaf_ops AS o
INNER JOIN main.instructions AS i ON o.run_id = i.run_id AND o.instruction_id = i.instruction_id
GROUP BY o.run_id, o.phase, o.device_id, i.layer, i.part
