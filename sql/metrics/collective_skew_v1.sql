/*---
metric: collective_skew
version: 1
status: stable
unit: us
polarity: lower_is_better
grain: [run_id, phase, axis]
value: skew_us
requires: SELECT run_id FROM models.collective_instances WHERE NOT is_partial AND ranks > 1
needs: [several_ranks]
description: >
  Start of the last rank of a collective minus the start of the first, mean over executions, percentiles by nearest rank;
  and the device that was last most often. Executions with ranks outside the capture, or with one rank, are left out.
changed: First version.
ccl_bench: straggler
---*/
WITH ranked AS (
  SELECT run_id, phase, axis, skew_ps, CUME_DIST() OVER (PARTITION BY run_id, phase, axis ORDER BY skew_ps) AS quantile
  FROM models.collective_instances
  WHERE NOT is_partial AND ranks > 1
),

summed AS (
  SELECT
    run_id,
    phase,
    axis,
    SUM(skew_ps) AS skew_ps,
    MIN(skew_ps) FILTER (WHERE quantile >= 0.5) AS p50_ps,
    MIN(skew_ps) FILTER (WHERE quantile >= 0.9) AS p90_ps,
    MIN(skew_ps) FILTER (WHERE quantile >= 0.99) AS p99_ps,
    COUNT(*) AS executions
  FROM ranked
  GROUP BY run_id, phase, axis
),

-- the rank that starts last; of several the lowest
latest AS (
  SELECT j.run_id, j.phase, j.axis, j.instance, MIN(c.device_id) AS device_id
  FROM models.collective_instances AS j
  INNER JOIN main.collectives AS c ON j.run_id = c.run_id AND j.instance = c.instance AND j.last_start_ps = c.start_ps
  WHERE NOT j.is_partial AND j.ranks > 1
  GROUP BY j.run_id, j.phase, j.axis, j.instance
),

lasts AS (
  SELECT run_id, phase, axis, device_id, COUNT(*) AS times
  FROM latest
  GROUP BY run_id, phase, axis, device_id
),

slowest AS (
  SELECT run_id, phase, axis, device_id, times
  FROM lasts
  QUALIFY ROW_NUMBER() OVER (PARTITION BY run_id, phase, axis ORDER BY times DESC, device_id) = 1
)

SELECT
  s.run_id, -- The run.
  s.phase, -- Phase; NULL outside of phases.
  s.axis, -- Mesh axes of the groups.
  s.skew_ps / (s.executions * 1e6) AS skew_us, -- Mean skew.
  s.p50_ps / 1e6 AS p50_us, -- Median.
  s.p90_ps / 1e6 AS p90_us, -- 90th percentile.
  s.p99_ps / 1e6 AS p99_us, -- 99th percentile.
  s.executions, -- Executions that it covers.
  o.device_id AS last_device_id, -- Device that was last most often; of several the lowest.
  o.times / s.executions AS last_share -- Share of the executions in which it was.
FROM summed AS s
INNER JOIN slowest AS o ON s.run_id = o.run_id AND s.phase IS NOT DISTINCT FROM o.phase AND s.axis = o.axis
