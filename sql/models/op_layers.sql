/*---
model: op_layers
description: >
  Transformer layer and microbatch of every device op, also where a pipeline runs one program for all of its stages. The
  program then numbers the layers within a stage, and the stage is the device's place on the pp axis. Stages hold equally
  many layers, and in tick t stage s works on microbatch t - s.
columns:
  run_id: The run.
  event_id: The event.
  device_id: The device.
  layer: Transformer layer; NULL where not known.
  stage: Pipeline stage of the device; NULL without a pipeline, or where the mesh is not known.
  stage_layer: Layer within the stage; NULL where the program does not count so.
  tick: Tick of the schedule; NULL outside of ticks.
  microbatch: >
    Microbatch that the stage works on; NULL outside of ticks, and in ticks in which the pipeline fills or drains and the
    stage has none.
  part: Part of the model; NULL where not known.
---*/
SELECT
  o.run_id AS run_id,
  o.event_id AS event_id,
  o.device_id AS device_id,
  CASE
    WHEN i.layer IS NOT NULL THEN i.layer
    WHEN r.num_layers % NULLIF(r.pp, 0) = 0 THEN d.pp_index * (r.num_layers // NULLIF(r.pp, 0)) + i.stage_layer
    ELSE NULL
  END AS layer,
  d.pp_index AS stage,
  i.stage_layer AS stage_layer,
  i.tick AS tick,
  CASE
    WHEN i.tick >= d.pp_index AND i.tick - d.pp_index < r.microbatches THEN i.tick - d.pp_index
    ELSE NULL
  END AS microbatch,
  i.part AS part
FROM main.ops AS o
LEFT JOIN main.runs AS r ON o.run_id = r.run_id
INNER JOIN main.instructions AS i ON o.run_id = i.run_id AND o.instruction_id = i.instruction_id
LEFT JOIN main.devices AS d ON o.run_id = d.run_id AND o.device_id = d.device_id
