/*---
description: >
  Distribution of the times between collectives in a phase, by the axes of the two. A row is one of at most a hundred
  points, with the share of the intervals that are no longer.
---*/
WITH ranked AS (
  SELECT
    run_id, phase, axis_from, axis_to, interval_ps,
    CUME_DIST() OVER (PARTITION BY run_id, phase, axis_from, axis_to ORDER BY interval_ps) AS share,
    COUNT(*) OVER (PARTITION BY run_id, phase, axis_from, axis_to) AS intervals
  FROM models.traffic_intervals
)

SELECT
  run_id,
  phase, -- Phase of both; NULL in a step without one, outside before the first and after the last.
  axis_from, -- Mesh axes of the collective before.
  axis_to,
  MAX(share) AS share, -- Share of the intervals that are at most interval_ps.
  MAX(interval_ps) AS interval_ps, -- Length of the interval.
  MIN(intervals) AS intervals -- Intervals of these axes in the phase.
FROM ranked
GROUP BY run_id, phase, axis_from, axis_to, FLOOR(-100 * share)
