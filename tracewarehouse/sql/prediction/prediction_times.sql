/*---
description: >
  Device time of the ops of each predicted step by what it rests on, with the ends of its range, in picoseconds of one
  device.
notes: >
  A transfer beside the core counts through the wait in its done. An op without work that starts at the very end of a
  program is in no step, and left out. The devices of a predicted run are alike, so the mean
  over them is the time of each.
---*/
WITH leaves AS (
  SELECT run_id, phase, basis, device_id, step, duration_ps, low_ps, high_ps, is_extrapolated
  FROM main.ops
  WHERE is_leaf AND basis IS NOT NULL AND step IS NOT NULL
),

executed AS (
  SELECT run_id, phase, COUNT(DISTINCT device_id) * COUNT(DISTINCT step) AS executions
  FROM leaves
  GROUP BY run_id, phase
)

SELECT
  l.run_id,
  l.phase, -- prefill or decode.
  l.basis, -- What the time rests on, as of ops.
  CAST(SUM(l.duration_ps) // e.executions AS BIGINT) AS time_ps, -- Time of a step's ops.
  CAST(SUM(l.low_ps) // e.executions AS BIGINT) AS low_ps, -- The same with each op at the low end of its range.
  CAST(SUM(l.high_ps) // e.executions AS BIGINT) AS high_ps, -- The same with each op at the high end.
  -- Part of time_ps for layers that were not compiled.
  CAST(COALESCE(SUM(l.duration_ps) FILTER (WHERE l.is_extrapolated), 0) // e.executions AS BIGINT) AS extrapolated_ps,
  COUNT(*) // e.executions AS ops -- Ops of a step.
FROM leaves AS l
INNER JOIN executed AS e ON l.run_id = e.run_id AND l.phase IS NOT DISTINCT FROM e.phase
GROUP BY l.run_id, l.phase, l.basis, e.executions
