/*---
description: >
  Transformer layer and microbatch that a device works on in an HLO instruction, even if a pipeline runs one program
  for all of its stages.
notes: >
  Such a program has slots for the layers of a stage, and the stage is the device's place on the pp axis. main.devices
  holds the slots of each stage's layers; without them, all stages are taken to hold the same number of layers. In
  tick t, stage s works on microbatch t - s. An instruction in a loop over layers is of another layer in each iteration:
  models.op_layers gives that of each op.
---*/
SELECT
  run_id, i.instruction_id, d.device_id,
  -- Transformer layer; in a loop over layers, the layer of the first iteration. NULL if unknown, and in a slot that
  -- only other stages fill.
  CASE
    WHEN i.layer IS NOT NULL THEN i.layer
    WHEN i.loop_layer IS NOT NULL AND COALESCE(r.pp, 1) = 1 THEN i.loop_layer
    WHEN i.loop_layer IS NOT NULL AND d.first_layer IS NOT NULL THEN d.first_layer + i.loop_layer
    WHEN i.loop_layer IS NOT NULL AND r.num_layers % NULLIF(r.pp, 0) = 0
      THEN d.pp_index * (r.num_layers // NULLIF(r.pp, 0)) + i.loop_layer
    WHEN d.first_slot IS NOT NULL
      THEN CASE
        WHEN i.stage_layer BETWEEN d.first_slot AND d.first_slot + d.last_layer - d.first_layer
          THEN d.first_layer + i.stage_layer - d.first_slot
      END
    WHEN r.num_layers % NULLIF(r.pp, 0) = 0 THEN d.pp_index * (r.num_layers // NULLIF(r.pp, 0)) + i.stage_layer
  END AS first_layer,
  i.layers_per_iteration, -- Layers by which it advances in each iteration; NULL outside of loops over layers.
  d.pp_index AS stage, -- Pipeline stage of the device; NULL without a pipeline, or if the mesh is unknown.
  i.stage_layer, i.tick,
  -- Microbatch that the stage works on; NULL outside of ticks, and in ticks in which the stage has none because the
  -- pipeline fills or drains.
  CASE WHEN i.tick >= d.pp_index AND i.tick - d.pp_index < r.microbatches THEN i.tick - d.pp_index END AS microbatch,
  i.part
FROM main.instructions AS i
INNER JOIN main.devices AS d USING (run_id)
LEFT JOIN main.runs AS r USING (run_id)
