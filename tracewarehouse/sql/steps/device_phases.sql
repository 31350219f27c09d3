/*---
description: >
  Busy and compute time of each phase on a device, over all of its steps. The last step counts, because its ops are
  known. Ops outside the steps of a run that has steps are left out, and so are devices without ops.
notes: >
  models.phase_steps counts the same steps far more cheaply, because it reads no op. It keeps devices without ops.
---*/
WITH busy AS (
  SELECT
    run_id, device_id, phase,
    step IS NOT NULL AS is_in_step,
    CAST(SUM(busy_ps) AS BIGINT) AS busy_ps,
    CAST(SUM(compute_ps) AS BIGINT) AS compute_ps
  FROM models.device_busy
  GROUP BY run_id, device_id, phase, step IS NOT NULL
),

runs_with_steps AS (
  SELECT run_id, TRUE AS is_stepped
  FROM models.phase_steps
  GROUP BY run_id
),

devices_with_ops AS (
  SELECT run_id, device_id
  FROM busy
  GROUP BY run_id, device_id
)

SELECT
  run_id, device_id, s.phase,
  s.steps, -- Steps of the phase on the device; NULL without steps.
  COALESCE(i.busy_ps, 0) AS busy_ps, -- Union of its leaf ops.
  COALESCE(i.compute_ps, 0) AS compute_ps -- Union of its leaf ops that are neither communication nor copies.
FROM models.phase_steps AS s
INNER JOIN devices_with_ops USING (run_id, device_id)
LEFT JOIN busy AS i
  ON s.run_id = i.run_id AND s.device_id = i.device_id AND i.is_in_step AND s.phase IS NOT DISTINCT FROM i.phase
UNION ALL
SELECT
  run_id, o.device_id, o.phase, NULL AS steps, o.busy_ps, o.compute_ps
FROM busy AS o
LEFT JOIN runs_with_steps AS w USING (run_id)
WHERE w.is_stepped IS NULL
