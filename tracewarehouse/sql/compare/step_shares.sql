/*---
parameters: [runs]
reads_runs: [runs]
description: >
  Where the time of a phase's steps goes on the devices of runs, over all steps of models.step_parts; a row per phase and
  part.
---*/
WITH summed AS (
  SELECT
    run_id, phase, part, position,
    SUM(time_ps) AS time_ps,
    SUM(mean_ms ORDER BY mean_ms) / COUNT(*) AS mean_ms,
    COUNT(*) AS steps
  FROM models.step_parts
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id, phase, part, position
  HAVING SUM(time_ps) > 0
)

SELECT
  run_id,
  COALESCE(phase, '') AS phase, -- Phase; empty for steps of none.
  part, -- A part of models.step_parts that takes any time.
  position, -- Position of the part in a step, from 0.
  -- Share of the time of the phase's steps.
  time_ps / NULLIF(SUM(time_ps) OVER (PARTITION BY run_id, phase), 0) AS share,
  mean_ms, -- Time of a step, mean over devices and steps.
  steps -- Steps of the phase.
FROM summed
