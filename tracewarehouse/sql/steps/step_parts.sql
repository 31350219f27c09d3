/*---
model: step_parts
description: >
  Where the time of each step goes on the devices that ran it, with one row per step and part: ops that are not
  communication, exposed communication, and no op. Steps last from start to start, so waiting for the host is idle
  time. The last step counts as in models.timed_spans.
---*/
WITH exposed AS (
  SELECT run_id, device_id, step, SUM(exposed_added_ps) AS exposed_communication_ps
  FROM main.collectives
  WHERE step IS NOT NULL
  GROUP BY run_id, device_id, step
),

divided AS (
  SELECT
    run_id, step, s.phase, s.step_ps,
    COALESCE(b.busy_ps, 0) AS busy_ps,
    LEAST(COALESCE(e.exposed_communication_ps, 0), COALESCE(b.busy_ps, 0)) AS exposed_communication_ps
  FROM models.steps AS s
  LEFT JOIN models.device_busy AS b USING (run_id, device_id, step)
  LEFT JOIN exposed AS e USING (run_id, device_id, step)
  WHERE s.clock = 'device' AND s.is_timed
),

summed AS (
  SELECT
    run_id, step, phase,
    COUNT(*) AS devices,
    SUM(busy_ps - exposed_communication_ps) AS other_ps,
    SUM(exposed_communication_ps) AS exposed_communication_ps,
    GREATEST(SUM(step_ps - busy_ps), 0) AS idle_ps
  FROM divided
  GROUP BY run_id, step, phase
),

parts AS (
  SELECT run_id, step, phase, devices, 'compute and copies' AS part, 0 AS position, other_ps AS time_ps
  FROM summed
  UNION ALL
  SELECT
    run_id, step, phase, devices,
    'exposed communication' AS part,
    1 AS position,
    exposed_communication_ps AS time_ps
  FROM summed
  UNION ALL
  SELECT run_id, step, phase, devices, 'idle' AS part, 2 AS position, idle_ps AS time_ps
  FROM summed
)

SELECT
  run_id, step, phase,
  part, -- compute and copies, exposed communication, or idle.
  position, -- Position of the part, from 0.
  -- Time of all devices in the part. Exposed communication is time in which the op line runs a collective, or the start
  -- or done of one. Idle is 0 if ops reach beyond the steps by more than the idle time.
  CAST(time_ps AS BIGINT) AS time_ps,
  time_ps / (devices * 1e9) AS mean_ms -- Mean over the devices that ran the step.
FROM parts
