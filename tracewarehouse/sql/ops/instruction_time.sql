/*---
model: instruction_time
description: >
  Executions and self time of each instruction's leaf ops on each device, by the phase of their step and by layer.
---*/
WITH placed AS (
  SELECT
    run_id, o.device_id, o.phase, o.instruction_id, o.iteration, o.self_ps,
    COALESCE(s.is_timed, FALSE) AS is_timed
  FROM models.leaf_ops AS o
  LEFT JOIN models.run_steps AS s USING (run_id, step)
),

summed AS (
  SELECT
    run_id, device_id, phase, instruction_id, iteration,
    COUNT(*) AS ops,
    SUM(self_ps) AS self_ps,
    COUNT(*) FILTER (WHERE is_timed) AS timed_ops,
    COALESCE(SUM(self_ps) FILTER (WHERE is_timed), 0) AS timed_self_ps
  FROM placed
  GROUP BY run_id, device_id, phase, instruction_id, iteration
),

layered AS (
  SELECT
    run_id, device_id, t.phase, instruction_id,
    CASE
      WHEN l.layers_per_iteration IS NULL THEN l.first_layer
      ELSE l.first_layer + t.iteration * l.layers_per_iteration
    END AS layer,
    t.ops, t.self_ps, t.timed_ops, t.timed_self_ps
  FROM summed AS t
  LEFT JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id)
)

SELECT
  run_id, t.device_id, t.phase, instruction_id, t.layer, i.category,
  i.op_class, -- What the device does in them - communication, copy or compute.
  i.part,
  CAST(SUM(t.ops) AS BIGINT) AS ops, -- Number of leaf ops.
  CAST(SUM(t.self_ps) AS BIGINT) AS self_ps, -- Their self time.
  CAST(SUM(t.timed_ops) AS BIGINT) AS timed_ops, -- Those in steps whose time is known (models.run_steps).
  CAST(SUM(t.timed_self_ps) AS BIGINT) AS timed_self_ps -- Their self time.
FROM layered AS t
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
GROUP BY run_id, t.device_id, t.phase, instruction_id, t.layer, i.category, i.op_class, i.part
