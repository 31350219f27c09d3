/*---
inline: true
description: Transformer layer and microbatch of every device op, looked up in models.instruction_layers.
---*/
SELECT
  run_id, o.event_id, device_id,
  -- Transformer layer; NULL if unknown, and in a slot that only other stages fill.
  CASE
    WHEN l.layers_per_iteration IS NULL THEN l.first_layer
    ELSE l.first_layer + o.iteration * l.layers_per_iteration
  END AS layer,
  l.stage, -- Pipeline stage of the device; NULL without a pipeline, or if the mesh is unknown.
  l.stage_layer, l.tick,
  -- Microbatch that the stage works on; NULL outside of ticks, and in ticks in which the stage has none because the
  -- pipeline fills or drains.
  l.microbatch, l.part
FROM main.ops AS o
LEFT JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id)
