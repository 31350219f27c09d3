/*---
model: transfer_fit
description: >
  Least squares of the transfer time of collectives on the bytes that a device sends, per kind and axis. A row needs
  three sizes or more that ran at least twice each, a time that grows with size, and r2 of 0.9 or more. Differences from
  the mean are taken in whole units of their range, one part in 2^20 or finer, so that sums stay exact integers. The
  intervals hold 95 % of such fits if the errors are normal: estimate -+ t x standard error. t is the quantile of
  Student's distribution with points - 2 degrees of freedom, from the expansion in Abramowitz and Stegun, Handbook of
  Mathematical Functions (1964), 26.7.5, whose error is below 0.04 % from 4 degrees on.
---*/
WITH peaks AS (
  SELECT run_id, MIN(peak_ici_gbps) AS peak_gbps
  FROM main.devices
  WHERE peak_ici_gbps > 0
  GROUP BY run_id
),

points AS (
  SELECT run_id, kind, axis, is_async, bus_bytes, transfer_ps
  FROM models.collective_instances
  WHERE NOT is_partial AND bus_bytes > 0
),

sized AS (
  SELECT run_id, kind, axis, bus_bytes, COUNT(*) AS executions
  FROM points
  GROUP BY run_id, kind, axis, bus_bytes
),

repeated AS (
  SELECT run_id, kind, axis
  FROM sized
  WHERE executions > 1
  GROUP BY run_id, kind, axis
  HAVING COUNT(*) >= 3
),

ranges AS (
  SELECT
    run_id,
    kind,
    axis,
    COUNT(*) AS points,
    COUNT(*) FILTER (WHERE p.is_async) AS async_points,
    COUNT(DISTINCT p.bus_bytes) AS sizes,
    SUM(p.bus_bytes) AS sum_bytes,
    SUM(p.transfer_ps) AS sum_ps,
    MAX(p.bus_bytes) - MIN(p.bus_bytes) AS range_bytes,
    MAX(p.transfer_ps) - MIN(p.transfer_ps) AS range_ps,
    CASE WHEN COUNT(*) < 1024 THEN 67108864 WHEN COUNT(*) < 65536 THEN 8388608 ELSE 1048576 END AS finest
  FROM points AS p
  INNER JOIN repeated USING (run_id, kind, axis)
  GROUP BY run_id, kind, axis
),

differences AS (
  SELECT
    run_id,
    kind,
    axis,
    (d.bus_bytes - r.sum_bytes // r.points) // (r.range_bytes // r.finest + 1) AS x,
    (d.transfer_ps - r.sum_ps // r.points) // (r.range_ps // r.finest + 1) AS y
  FROM points AS d
  INNER JOIN ranges AS r USING (run_id, kind, axis)
),

summed AS (
  SELECT
    run_id,
    kind,
    axis,
    SUM(x) AS sum_x,
    SUM(y) AS sum_y,
    SUM(x * x) AS sum_xx,
    SUM(x * y) AS sum_xy,
    SUM(y * y) AS sum_yy
  FROM differences
  GROUP BY run_id, kind, axis
),

moments AS (
  SELECT
    run_id,
    kind,
    axis,
    t.points,
    t.async_points,
    t.sizes,
    t.sum_bytes,
    t.sum_ps,
    k.peak_gbps,
    t.range_bytes // t.finest + 1 AS unit_bytes,
    t.range_ps // t.finest + 1 AS unit_ps,
    CAST(m.sum_xx AS DOUBLE) - CAST(m.sum_x AS DOUBLE) * CAST(m.sum_x AS DOUBLE) / t.points AS xx,
    CAST(m.sum_xy AS DOUBLE) - CAST(m.sum_x AS DOUBLE) * CAST(m.sum_y AS DOUBLE) / t.points AS xy,
    CAST(m.sum_yy AS DOUBLE) - CAST(m.sum_y AS DOUBLE) * CAST(m.sum_y AS DOUBLE) / t.points AS yy
  FROM summed AS m
  INNER JOIN ranges AS t USING (run_id, kind, axis)
  LEFT JOIN peaks AS k USING (run_id)
),

lines AS (
  SELECT
    run_id,
    kind,
    axis,
    points,
    async_points,
    sizes,
    peak_gbps,
    CAST(sum_bytes AS DOUBLE) / points AS mean_bytes,
    CAST(sum_ps AS DOUBLE) / points AS mean_ps,
    xx * CAST(unit_bytes AS DOUBLE) * CAST(unit_bytes AS DOUBLE) AS square_bytes,
    xy * CAST(unit_ps AS DOUBLE) / (xx * CAST(unit_bytes AS DOUBLE)) AS slope,
    xy * xy / (xx * yy) AS r2,
    -- sum of squared distances from the line over its degrees of freedom
    GREATEST(yy - xy * xy / xx, 0) * CAST(unit_ps AS DOUBLE) * CAST(unit_ps AS DOUBLE) / (points - 2) AS variance,
    1.95996398e0
    + 2.37227123e0 / (points - 2)
    + 2.82249862e0 / ((points - 2) * (points - 2))
    + 2.55584968e0 / ((points - 2) * (points - 2) * (points - 2))
    + 1.58953405e0 / ((points - 2) * (points - 2) * (points - 2) * (points - 2)) AS t
  FROM moments
  WHERE xx > 0 AND xy > 0 AND xy * xy >= 0.9e0 * xx * yy
)

SELECT
  run_id, -- The run.
  kind, -- Kind of collective.
  axis, -- Mesh axes of its groups.
  points, -- Executions; all ranks of one count once.
  async_points, -- Asynchronous ones among them.
  sizes, -- Distinct sizes.
  slope AS slope_ps_per_byte, -- Time per byte.
  t * SQRT(variance / square_bytes) AS slope_error_ps_per_byte, -- Half of its 95 % interval.
  mean_ps - slope * mean_bytes AS intercept_ps, -- Time of an empty message.
  -- Half of its 95 % interval.
  t * SQRT(variance * (1e0 / points + mean_bytes * mean_bytes / square_bytes)) AS intercept_error_ps,
  r2, -- Share of the variance that the line explains.
  -- Whether the slope means more bytes per time than the peak of a device's links in one direction, so that it cannot
  -- be right; NULL if unknown.
  1e3 / slope > peak_gbps AS is_above_peak
FROM lines
