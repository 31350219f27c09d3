/*---
description: >
  Distribution of the times of steps in each phase, and of the times per output token on each clock. A row is one of at
  most two hundred points, with the share of the steps that take no longer. A step's time is that of its slowest device
  or host.
---*/
WITH clocks AS (
  SELECT run_id, MIN(clock) AS clock
  FROM models.steps
  GROUP BY run_id
),

timed AS (
  SELECT run_id, 'step_time' AS metric, s.phase AS part, MAX(s.step_ps) AS time_ps
  FROM models.steps AS s
  INNER JOIN clocks USING (run_id, clock)
  WHERE NOT s.is_last
  GROUP BY run_id, s.phase, s.step
  UNION ALL
  SELECT run_id, 'tpot' AS metric, clock AS part, MAX(step_ps) AS time_ps
  FROM models.steps
  WHERE is_followed_decode
  GROUP BY run_id, clock, step
),

ranked AS (
  SELECT
    run_id, metric, part, time_ps,
    CUME_DIST() OVER (PARTITION BY run_id, metric, part ORDER BY time_ps) AS share
  FROM timed
)

SELECT
  run_id,
  metric, -- step_time, or tpot for steps that decode alone.
  part, -- The phase, NULL for steps without one; for tpot, the clock.
  MAX(share) AS share, -- Share of the steps that take at most time_ms.
  MAX(time_ps) / 1e9 AS time_ms -- Time of a step.
FROM ranked
GROUP BY run_id, metric, part, FLOOR(-200 * share)
