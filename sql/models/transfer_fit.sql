/*---
model: transfer_fit
description: >
  Least squares of the transfer time of collectives on the bytes that a device sends, per kind and axis. Differences from
  the mean are taken in whole units of their range, one part in 2^20 or finer, so that sums stay exact integers.
---*/
WITH points AS (
  SELECT run_id, kind, axis, is_async, bus_bytes, transfer_ps
  FROM models.collective_instances
  WHERE NOT is_partial AND bus_bytes > 0
),

ranges AS (
  SELECT
    run_id,
    kind,
    axis,
    COUNT(*) AS points,
    COUNT(*) FILTER (WHERE is_async) AS async_points,
    COUNT(DISTINCT bus_bytes) AS sizes,
    SUM(bus_bytes) AS sum_bytes,
    SUM(transfer_ps) AS sum_ps,
    MAX(bus_bytes) - MIN(bus_bytes) AS range_bytes,
    MAX(transfer_ps) - MIN(transfer_ps) AS range_ps,
    CASE WHEN COUNT(*) < 1024 THEN 67108864 WHEN COUNT(*) < 65536 THEN 8388608 ELSE 1048576 END AS finest
  FROM points
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
  WHERE r.sizes > 1
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
    t.range_bytes // t.finest + 1 AS unit_bytes,
    t.range_ps // t.finest + 1 AS unit_ps,
    CAST(m.sum_xx AS DOUBLE) - CAST(m.sum_x AS DOUBLE) * CAST(m.sum_x AS DOUBLE) / t.points AS xx,
    CAST(m.sum_xy AS DOUBLE) - CAST(m.sum_x AS DOUBLE) * CAST(m.sum_y AS DOUBLE) / t.points AS xy,
    CAST(m.sum_yy AS DOUBLE) - CAST(m.sum_y AS DOUBLE) * CAST(m.sum_y AS DOUBLE) / t.points AS yy
  FROM summed AS m
  INNER JOIN ranges AS t USING (run_id, kind, axis)
),

lines AS (
  SELECT
    run_id,
    kind,
    axis,
    points,
    async_points,
    sizes,
    sum_bytes,
    sum_ps,
    xy * CAST(unit_ps AS DOUBLE) / (xx * CAST(unit_bytes AS DOUBLE)) AS slope,
    xy * xy / NULLIF(xx * yy, 0) AS r2
  FROM moments
  WHERE xx > 0
)

SELECT
  run_id, -- The run.
  kind, -- Kind of collective.
  axis, -- Mesh axes of its groups.
  points, -- Executions, over all ranks one each.
  async_points, -- Those that are asynchronous.
  sizes, -- Distinct sizes; there is no row below two.
  slope AS slope_ps_per_byte, -- Time per byte.
  (CAST(sum_ps AS DOUBLE) - slope * CAST(sum_bytes AS DOUBLE)) / points AS intercept_ps, -- Time of an empty message.
  r2 -- Share of the variance that the line explains; NULL where all times are equal.
FROM lines
