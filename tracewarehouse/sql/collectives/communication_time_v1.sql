/*---
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, phase, device_id]
value: communication_time_ms
needs: [timed, any_collective]
description: >
  Time per step in which a collective is under way on a device, as the mean over the steps whose time is known. It is the
  union of the collectives' windows, hidden parts included. Without any steps, the capture counts as one.
ccl_bench: total_communication_time
---*/
WITH united AS (
  SELECT run_id, w.phase, w.device_id, SUM(w.new_ps) AS window_ps, COUNT(*) AS collectives
  FROM models.communication_windows AS w
  INNER JOIN models.counted_collectives USING (run_id, event_id)
  GROUP BY run_id, w.phase, w.device_id
)

SELECT
  u.run_id, u.phase, u.device_id,
  u.window_ps / (COALESCE(s.timed_steps, 1) * 1e9) AS communication_time_ms, -- Time per step.
  u.window_ps / 1e9 AS total_ms, -- Time over these steps.
  u.collectives, -- Executions of collectives.
  COALESCE(s.timed_steps, 1) AS steps -- Steps of the phase on the device that count; 1 if there are none.
FROM united AS u
LEFT JOIN models.phase_steps AS s
  ON u.run_id = s.run_id AND u.device_id = s.device_id AND u.phase IS NOT DISTINCT FROM s.phase
