/*---
description: >
  The time of a step's collectives by kind and axis: transfer, waiting for late ranks, and the rest of their windows.
  The exposed part of the windows stands beside these. Times are means over the devices.
---*/
WITH steps AS (
  SELECT run_id, phase, SUM(timed_steps) AS steps
  FROM models.phase_steps
  GROUP BY run_id, phase
),

times AS (
  SELECT
    run_id, r.phase, r.kind, r.axis,
    SUM(r.transfer_ps) AS transfer_ps,
    SUM(r.wait_ps) AS wait_ps,
    SUM(r.window_ps - r.transfer_ps - r.wait_ps) AS rest_ps,
    SUM(r.exposed_added_ps) AS exposed_ps
  FROM models.collective_ranks AS r
  INNER JOIN models.counted_collectives USING (run_id, event_id)
  WHERE NOT r.is_partial AND NOT r.is_fused
  GROUP BY run_id, r.phase, r.kind, r.axis
),

parts AS (
  SELECT run_id, phase, kind, axis, 'transfer' AS part, 0 AS position, transfer_ps AS time_ps
  FROM times
  UNION ALL
  SELECT run_id, phase, kind, axis, 'waiting' AS part, 1 AS position, wait_ps AS time_ps
  FROM times
  UNION ALL
  SELECT run_id, phase, kind, axis, 'rest of the window' AS part, 2 AS position, rest_ps AS time_ps
  FROM times
  UNION ALL
  SELECT run_id, phase, kind, axis, 'exposed' AS part, 3 AS position, exposed_ps AS time_ps
  FROM times
)

SELECT
  p.run_id,
  p.phase, -- Phase; NULL in a step without one, outside before the first and after the last.
  p.kind, p.axis,
  p.part, -- transfer, waiting, rest of the window, or exposed.
  p.position, -- Position of the part, from 0.
  SUM(p.time_ps) / (COALESCE(MIN(s.steps), 1) * 1e9) AS mean_ms -- Time per step; outside of steps, in all.
FROM parts AS p
LEFT JOIN steps AS s ON p.run_id = s.run_id AND p.phase IS NOT DISTINCT FROM s.phase
GROUP BY p.run_id, p.phase, p.kind, p.axis, p.part, p.position
