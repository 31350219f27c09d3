/*---
model: step_time_shares
description: >
  How the times of steps are distributed in each phase, and the times per output token on each clock: at most two hundred
  points, each with the share of the steps that take at most so long. A step's time is that of its slowest device or host.
---*/
WITH timed AS (
  SELECT run_id, 'step_time' AS metric, phase AS part, step_time_ms AS time_ms
  FROM metrics.step_time
  WHERE step_time_ms IS NOT NULL
  UNION ALL
  SELECT run_id, 'tpot' AS metric, clock AS part, MAX(step_ps) / 1e9 AS time_ms
  FROM models.steps
  WHERE phase = 'decode' AND NOT is_last_of_phase
  GROUP BY run_id, clock, step
),

ranked AS (
  SELECT
    run_id,
    metric,
    part,
    time_ms,
    CUME_DIST() OVER (PARTITION BY run_id, metric, part ORDER BY time_ms) AS share
  FROM timed
)

SELECT
  run_id, -- The run.
  metric, -- step_time, or tpot for decode steps alone.
  part, -- The phase, NULL for steps without one; for tpot, the clock.
  MAX(share) AS share, -- Share of the steps that take at most time_ms.
  MAX(time_ms) AS time_ms -- Time of a step.
FROM ranked
GROUP BY run_id, metric, part, FLOOR(-200 * share)
