/*---
parameters: [runs]
reads_runs: [runs]
description: >
  Where the time of a phase's steps goes on the devices of runs, over all steps of models.step_parts; a row per phase and
  part.
---*/
WITH lengths AS (
  SELECT
    run_id, phase, step,
    SUM(mean_ms ORDER BY mean_ms) AS step_ms,
    CUME_DIST() OVER (PARTITION BY run_id, phase ORDER BY SUM(mean_ms ORDER BY mean_ms)) AS quantile
  FROM models.step_parts
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id, phase, step
),

copied AS (
  SELECT c.run_id, c.phase, SUM(c.bytes) AS bytes
  FROM models.copy_windows AS c
  INNER JOIN lengths AS l ON c.run_id = l.run_id AND c.step = l.step AND c.phase IS NOT DISTINCT FROM l.phase
  WHERE c.is_async AND c.bytes > 0
  GROUP BY c.run_id, c.phase
),

medians AS (
  SELECT run_id, phase, MIN(step_ms) FILTER (WHERE quantile >= 0.5) AS median_ms
  FROM lengths
  GROUP BY run_id, phase
),

summed AS (
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
  s.run_id,
  COALESCE(s.phase, '') AS phase, -- Phase; empty for steps of none.
  s.part, -- A part of models.step_parts that takes any time.
  s.position, -- Position of the part in a step, from 0.
  -- Share of the time of the phase's steps.
  s.time_ps / NULLIF(SUM(s.time_ps) OVER (PARTITION BY s.run_id, s.phase), 0) AS share,
  s.mean_ms, -- Time of a step, mean over devices and steps.
  s.steps, -- Steps of the phase.
  m.median_ms, -- Whole time of the phase's median step, mean over devices.
  -- Of waiting for copies: bytes of the asynchronous copies over the whole time of the phase's steps, mean over devices;
  -- NULL for other parts, and where no bytes are known.
  CASE s.part WHEN 'waiting for copies' THEN c.bytes * 1e3 END
  / NULLIF(SUM(s.time_ps) OVER (PARTITION BY s.run_id, s.phase), 0) AS copied_gbps
FROM summed AS s
INNER JOIN medians AS m ON s.run_id = m.run_id AND s.phase IS NOT DISTINCT FROM m.phase
LEFT JOIN copied AS c ON s.run_id = c.run_id AND s.phase IS NOT DISTINCT FROM c.phase
