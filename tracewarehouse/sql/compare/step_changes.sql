/*---
macro: step_changes
parameters:
  runs: Runs to compare, as a list of run ids.
  baselines: Runs to compare them with.
  by_split: What the time is split by - layer, category, collective or operation.
  most: The most differences of a phase.
reads_runs: [runs, baselines]
description: >
  The way from the mean step of the baselines to that of the runs in bars that add up, per phase. The first bar is the
  step of the baselines, the last that of the runs. Between them stand the largest differences of
  macros.compare_steps, and the sum of the others.
---*/
WITH differences AS (
  SELECT
    phase, name, baseline_us, value_us, difference_us,
    LEAST(ROW_NUMBER() OVER (PARTITION BY phase ORDER BY ABS(difference_us) DESC, name), most + 1) AS place
  FROM macros.compare_steps(runs, baselines)
  WHERE split = by_split AND difference_us IS NOT NULL
),

bars AS (
  SELECT
    phase, place,
    CASE WHEN place > most THEN 'others' ELSE MIN(name) END AS name,
    CASE WHEN SUM(difference_us) > 0 THEN 'longer' ELSE 'shorter' END AS what,
    SUM(difference_us) AS difference_us
  FROM differences
  GROUP BY phase, place
  UNION ALL
  SELECT phase, 0 AS place, 'baseline' AS name, 'step' AS what, SUM(baseline_us) AS difference_us
  FROM differences
  GROUP BY phase
  UNION ALL
  SELECT phase, most + 2 AS place, 'run' AS name, 'step' AS what, SUM(value_us) AS difference_us
  FROM differences
  GROUP BY phase
),

placed AS (
  SELECT
    *,
    SUM(difference_us) OVER (
      PARTITION BY phase ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before_us
  FROM bars
)

SELECT
  phase,
  place, -- Position of the bar, from 0.
  name, -- The part that differs, baseline, run, or others.
  what, -- step, longer or shorter.
  difference_us, -- Length of the bar; below 0 where the step became shorter.
  CASE WHEN what = 'step' THEN 0 ELSE before_us END AS from_us, -- Where the bar begins.
  CASE WHEN what = 'step' THEN 0 ELSE before_us END + difference_us AS until_us -- Where it ends.
FROM placed
