/*---
model: step_parts
description: >
  Where the time of each step goes on the devices that ran it: ops other than communication, exposed communication, and no
  op. Steps last from start to start, so that waiting for the host is idle time.
columns:
  run_id: The run.
  step: Step.
  phase: Phase; NULL for a step of none.
  devices: Devices that ran it.
  compute_ps: Time of all devices in ops that do not communicate, copies among them.
  exposed_ps: Time of all devices in which the op line runs a collective, or the start or done of one.
  idle_ps: Time of all devices without an op; 0 where ops reach beyond the steps by more than that.
---*/
WITH exposed AS (
  SELECT
    c.run_id AS run_id,
    c.device_id AS device_id,
    c.step AS step,
    CAST(SUM(c.exposed_ps) AS BIGINT) AS exposed_ps
  FROM models.communication_ops AS c
  WHERE c.step IS NOT NULL
  GROUP BY c.run_id, c.device_id, c.step
),

parts AS (
  SELECT
    s.run_id AS run_id,
    s.step AS step,
    s.phase AS phase,
    s.step_ps AS step_ps,
    COALESCE(b.busy_ps, 0) AS busy_ps,
    LEAST(COALESCE(e.exposed_ps, 0), COALESCE(b.busy_ps, 0)) AS exposed_ps
  FROM models.steps AS s
  LEFT JOIN models.device_busy AS b ON s.run_id = b.run_id AND s.device_id = b.device_id AND s.step = b.step
  LEFT JOIN exposed AS e ON s.run_id = e.run_id AND s.device_id = e.device_id AND s.step = e.step
  WHERE s.clock = 'device'
)

SELECT
  p.run_id AS run_id,
  p.step AS step,
  p.phase AS phase,
  COUNT(*) AS devices,
  CAST(SUM(p.busy_ps - p.exposed_ps) AS BIGINT) AS compute_ps,
  CAST(SUM(p.exposed_ps) AS BIGINT) AS exposed_ps,
  CAST(GREATEST(SUM(p.step_ps - p.busy_ps), 0) AS BIGINT) AS idle_ps
FROM parts AS p
GROUP BY p.run_id, p.step, p.phase
