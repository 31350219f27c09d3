/*---
description: >
  The times over which shares and rates are taken: the timed steps of models.steps, on each device that runs ops. An op
  belongs to the time with its phase and step.
notes: >
  The last step has no successor, so its length is unknown and it is left out. If a phase has no other step, the last
  one counts with its own duration; the column bound then says on which side shares and rates err. A capture without
  steps has one such time for each device, from its first op to the end of its last.
---*/
WITH runs_with_steps AS (
  SELECT run_id, TRUE AS is_stepped
  FROM models.phase_steps
  GROUP BY run_id
),

devices_with_ops AS (
  SELECT run_id, device_id
  FROM models.device_busy
  GROUP BY run_id, device_id
)

SELECT
  run_id, device_id,
  s.phase, -- Phase; NULL for a step without one, and in a capture without steps.
  step, -- Step; NULL in a capture without steps.
  s.step_ps AS span_ps, -- The time.
  COALESCE(b.busy_ps, 0) AS busy_ps, -- Union of the leaf ops that belong to it.
  -- A last step, which counts because the phase has no other; the wait after it is missing from the time.
  s.is_last
FROM models.steps AS s
INNER JOIN devices_with_ops USING (run_id, device_id)
LEFT JOIN models.device_busy AS b USING (run_id, device_id, step)
WHERE s.is_timed
UNION ALL
SELECT
  run_id, b.device_id, b.phase, b.step,
  b.last_end_ps - b.first_start_ps AS span_ps,
  b.busy_ps, FALSE AS is_last
FROM models.device_busy AS b
LEFT JOIN runs_with_steps AS w USING (run_id)
WHERE w.is_stepped IS NULL
