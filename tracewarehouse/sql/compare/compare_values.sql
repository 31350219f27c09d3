/*---
parameters:
  runs: Runs to compare, as a list of run ids.
  baselines: Runs to compare them with.
  run_repeats: Runs that show how much the first side varies by itself; by default, runs.
  baseline_repeats: The same for the other side; by default, baselines.
optional: [run_repeats, baseline_repeats]
reads_runs: [runs, baselines, run_repeats, baseline_repeats]
description: >
  The stored metric values of some runs beside those of others, with a row per metric and per value of its dimensions.
  Medians are compared, and the 90th percentiles towards the worse side. A difference is noise if repeats or steps vary
  by as much.
notes: >
  Steps and the runs of a side are samples of one value. If a side has repeats, a difference is noise if it is at most
  the range of the runs' medians, or twice that range while no side has five runs. Otherwise, for a metric per step
  with four samples or more on each side, it is noise if the notches of the two medians overlap (1.57 times the
  interquartile range over the root of the number of samples). Percentiles are by nearest rank. Only the version that
  a metric's unversioned name stands for is compared.
---*/
WITH newest AS (
  SELECT metric, version, status, polarity
  FROM metrics.catalog
  QUALIFY
    ROW_NUMBER() OVER (
      PARTITION BY metric ORDER BY status = 'stable' DESC, status <> 'deprecated' DESC, version DESC
    ) = 1
),

members AS (
  SELECT 'run' AS side, TRUE AS is_named, UNNEST(LIST_DISTINCT(runs)) AS run_id
  UNION ALL
  SELECT 'baseline' AS side, TRUE AS is_named, UNNEST(LIST_DISTINCT(baselines)) AS run_id
  UNION ALL
  SELECT 'run' AS side, FALSE AS is_named, UNNEST(LIST_DISTINCT(COALESCE(run_repeats, runs))) AS run_id
  UNION ALL
  SELECT 'baseline' AS side, FALSE AS is_named, UNNEST(LIST_DISTINCT(COALESCE(baseline_repeats, baselines))) AS run_id
),

stored AS (
  SELECT
    run_id, metric, version,
    CAST(JSON_MERGE_PATCH(dimensions, '{"step": null}') AS VARCHAR) AS dimensions,
    JSON_EXISTS(dimensions, '$.step') AS is_per_step,
    value, unit
  FROM main.metric_values
  WHERE
    value IS NOT NULL
    AND (
      LIST_CONTAINS(LIST_CONCAT(runs, baselines), run_id)
      OR LIST_CONTAINS(LIST_CONCAT(run_repeats, baseline_repeats), run_id)
    )
),

samples AS (
  SELECT
    m.side, m.is_named, run_id, metric, t.unit, t.dimensions, t.is_per_step, t.value,
    CASE WHEN n.polarity = 'higher_is_better' THEN -t.value ELSE t.value END AS badness
  FROM stored AS t
  INNER JOIN newest AS n USING (metric, version)
  INNER JOIN members AS m USING (run_id)
),

ranked AS (
  SELECT
    * EXCLUDE (is_named),
    CUME_DIST() OVER (PARTITION BY side, metric, dimensions ORDER BY badness) AS quantile
  FROM samples
  WHERE is_named
),

sides AS (
  SELECT
    side, metric, dimensions,
    MIN(unit) AS unit,
    BOOL_OR(is_per_step) AS is_per_step,
    COUNT(*) AS samples,
    ARG_MIN(value, badness) FILTER (WHERE quantile >= 0.5) AS median,
    ARG_MIN(value, badness) FILTER (WHERE quantile >= 0.9) AS tail,
    MIN(badness) FILTER (WHERE quantile >= 0.75) - MIN(badness) FILTER (WHERE quantile >= 0.25) AS middle_half
  FROM ranked
  GROUP BY side, metric, dimensions
),

ranked_in_run AS (
  SELECT
    side, run_id, metric, dimensions, badness,
    CUME_DIST() OVER (PARTITION BY side, run_id, metric, dimensions ORDER BY badness) AS quantile
  FROM samples
  WHERE NOT is_named
),

medians AS (
  SELECT side, run_id, metric, dimensions, MIN(badness) FILTER (WHERE quantile >= 0.5) AS badness
  FROM ranked_in_run
  GROUP BY side, run_id, metric, dimensions
),

repeats AS (
  SELECT side, metric, dimensions, COUNT(*) AS runs_counted, MAX(badness) - MIN(badness) AS spread
  FROM medians
  GROUP BY side, metric, dimensions
),

widest AS (
  SELECT metric, dimensions, MAX(runs_counted) AS most_runs, MAX(spread) AS spread
  FROM repeats
  GROUP BY metric, dimensions
),

paired AS (
  SELECT
    metric, dimensions,
    MIN(unit) AS unit,
    MAX(median) FILTER (WHERE side = 'baseline') AS baseline,
    MAX(median) FILTER (WHERE side = 'run') AS value,
    MAX(tail) FILTER (WHERE side = 'baseline') AS baseline_tail,
    MAX(tail) FILTER (WHERE side = 'run') AS tail,
    COALESCE(MAX(samples) FILTER (WHERE side = 'baseline'), 0) AS baseline_samples,
    COALESCE(MAX(samples) FILTER (WHERE side = 'run'), 0) AS samples,
    CASE
      WHEN BOOL_AND(is_per_step AND samples >= 4) AND COUNT(*) = 2
        THEN SUM(1.57e0 * middle_half / SQRT(samples))
    END AS notches
  FROM sides
  GROUP BY metric, dimensions
),

-- the phases in which both sides know the place of most op time, from the least that is known in a run
known_layers AS (
  SELECT dimensions ->> '$.phase' AS phase
  FROM samples
  WHERE is_named AND metric = 'layer_coverage'
  GROUP BY phase
  HAVING
    MIN(value) >= 0.9
    AND COUNT(DISTINCT run_id) = (
      SELECT COUNT(DISTINCT m.run_id)
      FROM members AS m
      WHERE m.is_named
    )
),

judged AS (
  SELECT
    metric, n.version, n.status, n.polarity, dimensions, p.unit, p.baseline, p.value,
    p.value - p.baseline AS difference,
    p.baseline_tail, p.tail, CASE
      WHEN n.polarity = 'lower_is_better' THEN p.value - p.baseline
      WHEN n.polarity = 'higher_is_better' THEN p.baseline - p.value
    END AS worse_by, CASE
      WHEN n.polarity = 'lower_is_better' THEN p.tail - p.baseline_tail
      WHEN n.polarity = 'higher_is_better' THEN p.baseline_tail - p.tail
    END AS tail_worse_by, p.baseline_samples, p.samples,
    CASE WHEN w.most_runs >= 5 THEN w.spread WHEN w.most_runs >= 2 THEN 2 * w.spread ELSE p.notches END AS noise,
    CASE WHEN w.most_runs >= 2 THEN 'repeats' WHEN p.notches IS NOT NULL THEN 'steps' END AS noise_source,
    JSON_EXISTS(dimensions, '$.layer')
    AND COALESCE(dimensions ->> '$.phase', '') NOT IN (SELECT COALESCE(k.phase, '') FROM known_layers AS k)
      AS lacks_layers
  FROM paired AS p
  INNER JOIN newest AS n USING (metric)
  LEFT JOIN widest AS w USING (metric, dimensions)
)

SELECT
  metric, version,
  status, -- experimental, stable or deprecated.
  polarity, -- higher_is_better, lower_is_better or none.
  dimensions, -- The grain without run and step, as a JSON object.
  unit, -- Unit of the values.
  baseline, -- Median over the samples of the baselines; NULL if they have none.
  value, -- Median over the samples of the runs; NULL if they have none.
  difference, -- value - baseline.
  -- difference over the baseline's magnitude; NULL for a baseline of 0, and if it is not judged.
  CASE WHEN baseline <> 0 AND NOT lacks_layers THEN difference / ABS(baseline) END AS relative,
  -- How much worse, as a share of the baseline; negative if better, infinite for any loss from 0, NULL without
  -- polarity.
  CASE
    WHEN lacks_layers THEN NULL
    WHEN worse_by = 0 THEN 0
    WHEN baseline <> 0 THEN worse_by / ABS(baseline)
    ELSE worse_by * CAST('infinity' AS DOUBLE)
  END AS loss,
  baseline_tail, -- 90th percentile towards the worse side, of the baselines.
  tail, -- 90th percentile towards the worse side, of the runs.
  CASE
    WHEN lacks_layers THEN NULL
    WHEN tail_worse_by = 0 THEN 0
    WHEN baseline_tail <> 0 THEN tail_worse_by / ABS(baseline_tail)
    ELSE tail_worse_by * CAST('infinity' AS DOUBLE)
  END AS tail_loss, -- How much worse the tail is, as a share of the baseline's tail.
  baseline_samples, -- Samples of the baselines.
  samples, -- Samples of the runs.
  noise, -- The largest difference that counts as noise; NULL if the noise is unknown.
  noise_source, -- repeats or steps; NULL if the noise is unknown.
  -- same, noise, better or worse; unknown where the values differ and the noise is unknown, unless they are bytes or
  -- counts, which do not vary in equal runs; different for a metric without polarity; not in run or not in baseline if
  -- one side has no value; not judged for a number by layer if less than 0.9 of a side's op time has a known layer.
  CASE
    WHEN lacks_layers THEN 'not judged'
    WHEN value IS NULL THEN 'not in run'
    WHEN baseline IS NULL THEN 'not in baseline'
    WHEN difference = 0 THEN 'same'
    WHEN ABS(difference) <= noise THEN 'noise'
    WHEN polarity = 'none' THEN 'different'
    WHEN noise IS NULL AND unit NOT IN ('bytes', 'count') THEN 'unknown'
    WHEN worse_by > 0 THEN 'worse'
    ELSE 'better'
  END AS verdict
FROM judged
