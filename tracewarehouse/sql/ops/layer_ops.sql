/*---
description: >
  The time of each instruction in a transformer layer, per device, phase and iteration of a loop. Ops outside of steps
  and ops without a known layer are left out.
---*/
WITH executed AS (
  SELECT
    run_id, device_id, phase, instruction_id, iteration,
    CAST(SUM(self_ps) AS BIGINT) AS self_ps,
    MIN(start_ps) AS start_ps
  FROM models.leaf_ops
  WHERE phase IS DISTINCT FROM 'outside'
  GROUP BY run_id, device_id, phase, instruction_id, iteration
)

SELECT
  run_id, e.device_id, e.phase, instruction_id, CASE
    WHEN l.layers_per_iteration IS NULL THEN l.first_layer
    ELSE l.first_layer + e.iteration * l.layers_per_iteration
  END AS layer, -- Transformer layer.
  e.self_ps, -- Self time of all its executions.
  e.start_ps -- Start of the first.
FROM executed AS e
INNER JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id)
-- an op of a loop over layers may run outside of its iterations too
WHERE l.first_layer IS NOT NULL AND (l.layers_per_iteration IS NULL OR e.iteration IS NOT NULL)
