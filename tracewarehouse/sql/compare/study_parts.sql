/*---
parameters: [runs]
reads_runs: [runs]
description: >
  Where the time of a step goes in each configuration of a study; a row per run, phase and part of models.step_parts that
  takes any time.
---*/
WITH points AS (
  SELECT *
  FROM macros.study_points(runs)
),

shares AS (
  SELECT *
  FROM macros.step_shares(runs)
),

parts AS (
  SELECT DISTINCT part, "position"
  FROM models.step_parts
  WHERE LIST_CONTAINS(runs, run_id)
)

SELECT
  run_id, p.workload,
  p.configuration, -- What tells the run from the others of its workload.
  p.label,
  p.place, -- Position of the run in its workload, by throughput per chip.
  s.phase, -- Phase; empty for steps of none.
  s.part, -- The part.
  q."position", -- Position of the part.
  s.mean_ms, -- Time of a step, mean over devices and steps.
  s.share, -- Its share of the step.
  -- The share of exposed communication, on every row of the phase; 0 where nothing communicates.
  MAX(CASE WHEN s.part = 'exposed communication' THEN s.share ELSE 0 END) OVER (PARTITION BY run_id, s.phase)
    AS communication
FROM points AS p
INNER JOIN shares AS s USING (run_id)
INNER JOIN parts AS q ON s.part = q.part
