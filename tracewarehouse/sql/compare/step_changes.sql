/*---
parameters:
  runs: Runs to compare, as a list of run ids.
  baselines: Runs to compare them with.
  by_split: What the time is split by - part, layer, category, collective or operation.
  most: The most differences of a phase.
reads_runs: [runs, baselines]
description: >
  The largest differences between the mean step of the runs and that of the baselines, per phase, as
  macros.compare_steps splits it, and the sum of the others.
---*/
WITH differences AS (
  SELECT
    phase, name, baseline_us, value_us, difference_us,
    LEAST(ROW_NUMBER() OVER (PARTITION BY phase ORDER BY ABS(difference_us) DESC, name), most + 1) AS place
  FROM macros.compare_steps(runs, baselines)
  WHERE split = by_split AND difference_us IS NOT NULL
)

SELECT
  phase,
  place, -- Position, from 1.
  CASE WHEN place > most AND COUNT(*) > 1 THEN 'others' ELSE MIN(name) END AS name, -- What differs, or others.
  SUM(baseline_us) AS baseline_us, -- Its time in a step of the baselines.
  SUM(value_us) AS value_us, -- Its time in a step of the runs.
  SUM(difference_us) AS difference_us -- value_us - baseline_us.
FROM differences
GROUP BY phase, place
