/*---
model: device_phases
description: >
  Span, busy and compute time of each phase on a device. The span is the time of the phase's steps, each from its start
  to the next one's; in a capture without steps it is from the first op to the end of the last, and phase is NULL. Ops
  outside the steps of a device that has some are left out, and so are devices without ops in the capture.
columns:
  run_id: The run.
  device_id: The device.
  phase: Phase; NULL for the steps of none, and in a capture without steps.
  steps: Steps of the phase on the device; NULL without steps.
  span_ps: Time of the phase.
  busy_ps: Union of its leaf ops.
  compute_ps: Union of its leaf ops that are neither communication nor copies.
---*/
WITH busy AS (
  SELECT
    b.run_id AS run_id,
    b.device_id AS device_id,
    b.phase AS phase,
    b.step IS NOT NULL AS is_in_step,
    CAST(SUM(b.busy_ps) AS BIGINT) AS busy_ps,
    CAST(SUM(b.compute_ps) AS BIGINT) AS compute_ps,
    MAX(b.last_end_ps) - MIN(b.first_start_ps) AS ops_span_ps
  FROM models.device_busy AS b
  GROUP BY b.run_id, b.device_id, b.phase, b.step IS NOT NULL
),

devices_with_steps AS (
  SELECT
    d.run_id AS run_id,
    d.device_id AS device_id
  FROM models.phase_steps AS d
  GROUP BY d.run_id, d.device_id
),

devices_with_ops AS (
  SELECT
    e.run_id AS run_id,
    e.device_id AS device_id
  FROM busy AS e
  GROUP BY e.run_id, e.device_id
)

SELECT
  s.run_id AS run_id,
  s.device_id AS device_id,
  s.phase AS phase,
  s.steps AS steps,
  s.time_ps AS span_ps,
  COALESCE(i.busy_ps, 0) AS busy_ps,
  COALESCE(i.compute_ps, 0) AS compute_ps
FROM models.phase_steps AS s
INNER JOIN devices_with_ops AS t ON s.run_id = t.run_id AND s.device_id = t.device_id
LEFT JOIN busy AS i
  ON
    s.run_id = i.run_id AND s.device_id = i.device_id AND i.is_in_step
    AND COALESCE(s.phase, '') = COALESCE(i.phase, '')
UNION ALL
SELECT
  o.run_id AS run_id,
  o.device_id AS device_id,
  o.phase AS phase,
  CAST(NULL AS BIGINT) AS steps,
  o.ops_span_ps AS span_ps,
  o.busy_ps AS busy_ps,
  o.compute_ps AS compute_ps
FROM busy AS o
LEFT JOIN devices_with_steps AS w ON o.run_id = w.run_id AND o.device_id = w.device_id
WHERE w.run_id IS NULL
