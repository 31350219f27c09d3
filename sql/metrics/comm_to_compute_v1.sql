/*---
metric: comm_to_compute
version: 1
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: comm_to_compute
requires: SELECT c.run_id FROM main.collectives AS c
description: >
  Time in which collectives are under way over the time in which devices compute, all devices together: the union of the
  windows on a device, hidden parts and waiting included, over the union of its ops that are neither communication nor
  copies. Devices without communication count with their compute.
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none, and in a capture without steps.
  comm_to_compute: Communication time over compute time.
  min_ratio: That of the device that has least, of those that compute.
  max_ratio: That of the device that has most, of those that compute.
  communication_ms: Communication time of all devices.
  compute_ms: Compute time of all devices.
  devices: Devices that ran the phase.
changed: First version.
ccl_bench: communication_ratio
---*/
WITH united AS (
  SELECT
    c.run_id AS run_id,
    c.phase AS phase,
    c.device_id AS device_id,
    CAST(SUM(c.new_ps) AS BIGINT) AS window_ps
  FROM models.communication_windows AS c
  GROUP BY c.run_id, c.phase, c.device_id
),

communicating AS (
  SELECT u.run_id AS run_id
  FROM united AS u
  GROUP BY u.run_id
),

compared AS (
  SELECT
    d.run_id AS run_id,
    d.phase AS phase,
    d.compute_ps AS compute_ps,
    COALESCE(w.window_ps, 0) AS window_ps
  FROM models.device_phases AS d
  INNER JOIN communicating AS k ON d.run_id = k.run_id
  LEFT JOIN united AS w
    ON
      d.run_id = w.run_id AND d.device_id = w.device_id
      AND COALESCE(d.phase, '') = COALESCE(w.phase, '')
)

SELECT
  p.run_id AS run_id,
  p.phase AS phase,
  CAST(SUM(p.window_ps) AS DOUBLE) / CAST(SUM(p.compute_ps) AS DOUBLE) AS comm_to_compute,
  MIN(CAST(p.window_ps AS DOUBLE) / CAST(NULLIF(p.compute_ps, 0) AS DOUBLE)) AS min_ratio,
  MAX(CAST(p.window_ps AS DOUBLE) / CAST(NULLIF(p.compute_ps, 0) AS DOUBLE)) AS max_ratio,
  CAST(SUM(p.window_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS communication_ms,
  CAST(SUM(p.compute_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS compute_ms,
  COUNT(*) AS devices
FROM compared AS p
GROUP BY p.run_id, p.phase
HAVING SUM(p.compute_ps) > 0
