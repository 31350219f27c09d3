/*---
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, phase, device_id, kind, axis]
value: exposed_ms
needs: [timed, any_collective]
description: >
  Time per step in which a device computes nothing because its op line runs a collective, or the start or done of one.
notes: >
  Each moment counts once, for the collective whose op runs, so the rows of a device add up to its whole exposed time.
  The value is the mean over the steps whose time is known, as in models.step_parts. Without any steps, the
  capture counts as one.
---*/
WITH exposed AS (
  SELECT run_id, phase, device_id, kind, axis, SUM(exposed_added_ps) AS exposed_communication_ps
  FROM models.counted_collectives
  WHERE exposed_added_ps IS NOT NULL
  GROUP BY run_id, phase, device_id, kind, axis
)

SELECT
  e.run_id, e.phase, e.device_id, e.kind, e.axis,
  e.exposed_communication_ps / (COALESCE(s.timed_steps, 1) * 1e9) AS exposed_ms, -- Exposed time per step.
  e.exposed_communication_ps / 1e9 AS total_ms, -- Exposed time over these steps.
  COALESCE(s.timed_steps, 1) AS steps -- Steps of the phase on the device that count; 1 if there are none.
FROM exposed AS e
LEFT JOIN models.phase_steps AS s
  ON e.run_id = s.run_id AND e.device_id = s.device_id AND e.phase IS NOT DISTINCT FROM s.phase
