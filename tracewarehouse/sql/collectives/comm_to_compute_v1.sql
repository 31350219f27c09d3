/*---
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: comm_to_compute
needs: [timed, any_collective, computed_phase]
description: Time with a collective under way over time with compute, all devices together.
notes: >
  Communication is the union of the windows on a device, hidden parts and waiting included. Compute is the union of its
  ops that are neither communication nor copies. Devices without communication count with their compute.
ccl_bench: communication_ratio
---*/
WITH united AS (
  SELECT run_id, phase, device_id, SUM(new_ps) AS window_ps
  FROM models.communication_windows
  GROUP BY run_id, phase, device_id
),

communicating AS (
  SELECT run_id
  FROM united
  GROUP BY run_id
),

compared AS (
  SELECT run_id, d.phase, d.compute_ps, COALESCE(w.window_ps, 0) AS window_ps
  FROM models.device_phases AS d
  INNER JOIN communicating USING (run_id)
  LEFT JOIN united AS w ON d.run_id = w.run_id AND d.device_id = w.device_id AND d.phase IS NOT DISTINCT FROM w.phase
)

SELECT
  run_id, phase,
  SUM(window_ps) / SUM(compute_ps) AS comm_to_compute, -- Communication time over compute time.
  MIN(window_ps / NULLIF(compute_ps, 0)) AS min_ratio, -- The lowest of a device that computes.
  MAX(window_ps / NULLIF(compute_ps, 0)) AS max_ratio, -- The highest of a device that computes.
  SUM(window_ps) / 1e9 AS communication_ms, -- Communication time of all devices.
  SUM(compute_ps) / 1e9 AS compute_ms, -- Compute time of all devices.
  COUNT(*) AS devices -- Devices that ran the phase.
FROM compared
GROUP BY run_id, phase
HAVING SUM(compute_ps) > 0
