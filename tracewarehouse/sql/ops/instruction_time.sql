/*---
model: instruction_time
description: Executions and self time of each instruction's leaf ops on each device, by the phase of their step.
---*/
WITH placed AS (
  SELECT run_id, o.device_id, o.phase, o.instruction_id, o.self_ps, COALESCE(s.is_timed, FALSE) AS is_timed
  FROM models.leaf_ops AS o
  LEFT JOIN models.run_steps AS s USING (run_id, step)
),

summed AS (
  SELECT
    run_id, device_id, phase, instruction_id,
    COUNT(*) AS ops,
    CAST(SUM(self_ps) AS BIGINT) AS self_ps,
    COUNT(*) FILTER (WHERE is_timed) AS timed_ops,
    CAST(COALESCE(SUM(self_ps) FILTER (WHERE is_timed), 0) AS BIGINT) AS timed_self_ps
  FROM placed
  GROUP BY run_id, device_id, phase, instruction_id
)

SELECT
  run_id, t.device_id, t.phase, instruction_id, i.category,
  i.op_class, -- What the device does in them - communication, copy or compute.
  t.ops, -- Number of leaf ops.
  t.self_ps, -- Their self time.
  t.timed_ops, -- Those in steps whose time is known (models.run_steps).
  t.timed_self_ps -- Their self time.
FROM summed AS t
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
