/*---
model: op_layers
inline: true
description: >
  Transformer layer and microbatch of every device op, from models.instruction_layers by its instruction and device.
---*/
SELECT
  run_id, -- The run.
  o.event_id, -- The event.
  device_id, -- The device.
  -- Transformer layer; NULL where not known, and for what a device computes in a slot where its stage has no layer,
  -- because another stage has one there.
  l.layer,
  l.stage, -- Pipeline stage of the device; NULL without a pipeline, or where the mesh is not known.
  l.stage_layer, -- Slot of the layer in the program of all stages; NULL where the program does not count so.
  l.tick, -- Tick of the schedule; NULL outside of ticks.
  -- Microbatch that the stage works on; NULL outside of ticks, and in ticks in which the pipeline fills or drains and
  -- the stage has none.
  l.microbatch,
  l.part -- Part of the model; NULL where not known.
FROM main.ops AS o
LEFT JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id)
