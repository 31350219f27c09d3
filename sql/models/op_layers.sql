/*---
model: op_layers
inline: true
description: >
  Transformer layer and microbatch of every device op, as models.instruction_layers tells them of its instruction on its
  device.
columns:
  run_id: The run.
  event_id: The event.
  device_id: The device.
  layer: >
    Transformer layer; NULL where not known, and for what a device computes in a slot where its stage has no layer, because
    another stage has one there.
  stage: Pipeline stage of the device; NULL without a pipeline, or where the mesh is not known.
  stage_layer: Slot of the layer in the program of all stages; NULL where the program does not count so.
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
  l.layer AS layer,
  l.stage AS stage,
  l.stage_layer AS stage_layer,
  l.tick AS tick,
  l.microbatch AS microbatch,
  l.part AS part
FROM main.ops AS o
LEFT JOIN models.instruction_layers AS l
  ON o.run_id = l.run_id AND o.instruction_id = l.instruction_id AND o.device_id = l.device_id
