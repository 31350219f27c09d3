/*---
description: >
  Times of more than a microsecond in which a device runs no op, during the run's steps: between two ops, from the run's
  first step to the device's first op, and from its last op to the end of the run's last step.
---*/
WITH devices AS (
  SELECT run_id, device_id, MIN(first_start_ps) AS first_start_ps, MAX(last_end_ps) AS last_end_ps
  FROM models.execution_ops
  GROUP BY run_id, device_id
),

runs AS (
  SELECT run_id, MIN(start_ps) AS first_step_ps, MAX(until_ps) AS last_step_ps
  FROM models.run_steps
  GROUP BY run_id
),

bounds AS (
  SELECT run_id, d.device_id, d.first_start_ps, d.last_end_ps, r.first_step_ps, r.last_step_ps
  FROM devices AS d
  INNER JOIN runs AS r USING (run_id)
)

SELECT
  run_id, device_id,
  start_ps - idle_before_ps AS start_ps, -- Start of the pause.
  start_ps AS end_ps, -- End of the pause, exclusive.
  event_id, -- The op that ends it; NULL before the first op and after the last.
  phase, -- Phase of that op; NULL in a step without one, outside before the first and after the last.
  step, -- Step of that op; NULL outside of steps.
  execution, -- Execution of a program on the device to which that op belongs; NULL if unknown.
  op_class -- What the device does in that op - communication, copy or compute.
FROM models.leaf_ops
WHERE idle_before_ps > 1000000
UNION ALL
SELECT
  run_id, device_id, first_step_ps AS start_ps, first_start_ps AS end_ps,
  NULL AS event_id, NULL AS phase, NULL AS step, NULL AS execution, NULL AS op_class
FROM bounds
WHERE first_start_ps - first_step_ps > 1000000
UNION ALL
SELECT
  run_id, device_id, last_end_ps AS start_ps, last_step_ps AS end_ps,
  NULL AS event_id, NULL AS phase, NULL AS step, NULL AS execution, NULL AS op_class
FROM bounds
WHERE last_step_ps - last_end_ps > 1000000
