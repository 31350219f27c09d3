/*---
status: stable
unit: us
polarity: lower_is_better
grain: [run_id, phase, axis]
value: skew_us
needs: [recorded, several_ranks]
description: >
  Start of the last rank of a collective minus the start of the first, as the mean over executions. last_device_id is
  the device that was last most often. Executions with ranks outside the capture count only in a row that has no others;
  their skew is a lower bound.
notes: >
  Executions with one rank are left out.
ccl_bench: straggler
---*/
WITH chosen AS (
  SELECT run_id, i.phase, i.axis, i.instance, i.is_partial, i.skew_ps, i.last_start_ps
  FROM models.collective_instances AS i
  LEFT JOIN models.predicted_runs AS g USING (run_id)
  WHERE i.ranks > 1 AND g.is_predicted IS NULL
  QUALIFY i.is_partial = MIN(i.is_partial) OVER (PARTITION BY run_id, i.phase, i.axis) -- whole executions, if there are any
),

ranked AS (
  SELECT
    * EXCLUDE (instance, last_start_ps),
    CUME_DIST() OVER (PARTITION BY run_id, phase, axis ORDER BY skew_ps) AS quantile
  FROM chosen
),

summed AS (
  SELECT
    run_id, phase, axis,
    SUM(skew_ps) AS skew_ps,
    MIN(skew_ps) FILTER (WHERE quantile >= 0.5) AS p50_ps,
    MIN(skew_ps) FILTER (WHERE quantile >= 0.9) AS p90_ps,
    MIN(skew_ps) FILTER (WHERE quantile >= 0.99) AS p99_ps,
    COUNT(*) FILTER (WHERE is_partial) AS partial_executions,
    COUNT(*) AS executions
  FROM ranked
  GROUP BY run_id, phase, axis
),

-- the rank that starts last, if it is one
latest AS (
  SELECT j.run_id, j.phase, j.axis, j.instance, MIN(c.device_id) AS device_id
  FROM chosen AS j
  INNER JOIN main.collectives AS c ON j.run_id = c.run_id AND j.instance = c.instance AND j.last_start_ps = c.start_ps
  GROUP BY j.run_id, j.phase, j.axis, j.instance
  HAVING COUNT(*) = 1
),

lasts AS (
  SELECT run_id, phase, axis, device_id, COUNT(*) AS times
  FROM latest
  GROUP BY run_id, phase, axis, device_id
),

most AS (
  SELECT run_id, phase, axis, device_id, times
  FROM lasts
  QUALIFY times = MAX(times) OVER (PARTITION BY run_id, phase, axis)
),

slowest AS (
  SELECT run_id, phase, axis, CASE WHEN COUNT(*) = 1 THEN MIN(device_id) END AS device_id, MIN(times) AS times
  FROM most
  GROUP BY run_id, phase, axis
)

SELECT
  s.run_id, s.phase, s.axis,
  s.skew_ps / (s.executions * 1e6) AS skew_us, -- Mean skew.
  CASE WHEN s.partial_executions > 0 THEN 'lower' END AS bound,
  s.p50_ps / 1e6 AS p50_us,
  s.p90_ps / 1e6 AS p90_us,
  s.p99_ps / 1e6 AS p99_us,
  s.executions, -- Executions covered.
  -- Device that was most often the only last one; NULL if there is none, or if several tie.
  o.device_id AS last_device_id,
  -- Share of the executions in which a device that leads or ties in this was last.
  COALESCE(o.times, 0) / s.executions AS last_share
FROM summed AS s
LEFT JOIN slowest AS o ON s.run_id = o.run_id AND s.phase IS NOT DISTINCT FROM o.phase AND s.axis = o.axis
