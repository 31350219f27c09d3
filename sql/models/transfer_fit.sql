/*---
model: transfer_fit
description: >
  Least squares of the transfer time of collectives on the bytes that a device sends, per kind and axis. Differences from
  the mean are taken in whole units of their range, one part in 2^20 or finer, so that sums stay exact integers.
columns:
  run_id: The run.
  kind: Kind of collective.
  axis: Mesh axes of its groups.
  points: Executions, over all ranks one each.
  async_points: Those that are asynchronous.
  sizes: Distinct sizes; there is no row below two.
  slope_ps_per_byte: Time per byte.
  intercept_ps: Time of an empty message.
  r2: Share of the variance that the line explains; NULL where all times are equal.
---*/
WITH points AS (
  SELECT
    i.run_id AS run_id,
    i.kind AS kind,
    i.axis AS axis,
    i.is_async AS is_async,
    i.bus_bytes AS bus_bytes,
    i.transfer_ps AS transfer_ps
  FROM models.collective_instances AS i
  WHERE NOT i.is_partial AND i.bus_bytes > 0
),

ranges AS (
  SELECT
    p.run_id AS run_id,
    p.kind AS kind,
    p.axis AS axis,
    COUNT(*) AS points,
    CAST(SUM(CASE WHEN p.is_async THEN 1 ELSE 0 END) AS BIGINT) AS async_points,
    COUNT(DISTINCT p.bus_bytes) AS sizes,
    CAST(SUM(p.bus_bytes) AS BIGINT) AS sum_bytes,
    CAST(SUM(p.transfer_ps) AS BIGINT) AS sum_ps,
    MAX(p.bus_bytes) - MIN(p.bus_bytes) AS range_bytes,
    MAX(p.transfer_ps) - MIN(p.transfer_ps) AS range_ps,
    CASE WHEN COUNT(*) < 1024 THEN 67108864 WHEN COUNT(*) < 65536 THEN 8388608 ELSE 1048576 END AS finest
  FROM points AS p
  GROUP BY p.run_id, p.kind, p.axis
),

differences AS (
  SELECT
    d.run_id AS run_id,
    d.kind AS kind,
    d.axis AS axis,
    (d.bus_bytes - r.sum_bytes // r.points) // (r.range_bytes // r.finest + 1) AS x,
    (d.transfer_ps - r.sum_ps // r.points) // (r.range_ps // r.finest + 1) AS y
  FROM points AS d
  INNER JOIN ranges AS r ON d.run_id = r.run_id AND d.kind = r.kind AND d.axis = r.axis
  WHERE r.sizes > 1
),

summed AS (
  SELECT
    s.run_id AS run_id,
    s.kind AS kind,
    s.axis AS axis,
    CAST(SUM(s.x) AS BIGINT) AS sum_x,
    CAST(SUM(s.y) AS BIGINT) AS sum_y,
    CAST(SUM(s.x * s.x) AS BIGINT) AS sum_xx,
    CAST(SUM(s.x * s.y) AS BIGINT) AS sum_xy,
    CAST(SUM(s.y * s.y) AS BIGINT) AS sum_yy
  FROM differences AS s
  GROUP BY s.run_id, s.kind, s.axis
),

moments AS (
  SELECT
    m.run_id AS run_id,
    m.kind AS kind,
    m.axis AS axis,
    t.points AS points,
    t.async_points AS async_points,
    t.sizes AS sizes,
    t.sum_bytes AS sum_bytes,
    t.sum_ps AS sum_ps,
    t.range_bytes // t.finest + 1 AS unit_bytes,
    t.range_ps // t.finest + 1 AS unit_ps,
    CAST(m.sum_xx AS DOUBLE)
    - CAST(CAST(m.sum_x AS DOUBLE) * CAST(m.sum_x AS DOUBLE) AS DOUBLE) / CAST(t.points AS DOUBLE) AS xx,
    CAST(m.sum_xy AS DOUBLE)
    - CAST(CAST(m.sum_x AS DOUBLE) * CAST(m.sum_y AS DOUBLE) AS DOUBLE) / CAST(t.points AS DOUBLE) AS xy,
    CAST(m.sum_yy AS DOUBLE)
    - CAST(CAST(m.sum_y AS DOUBLE) * CAST(m.sum_y AS DOUBLE) AS DOUBLE) / CAST(t.points AS DOUBLE) AS yy
  FROM summed AS m
  INNER JOIN ranges AS t ON m.run_id = t.run_id AND m.kind = t.kind AND m.axis = t.axis
),

lines AS (
  SELECT
    l.run_id AS run_id,
    l.kind AS kind,
    l.axis AS axis,
    l.points AS points,
    l.async_points AS async_points,
    l.sizes AS sizes,
    l.sum_bytes AS sum_bytes,
    l.sum_ps AS sum_ps,
    CAST(l.xy * CAST(l.unit_ps AS DOUBLE) AS DOUBLE) / CAST(l.xx * CAST(l.unit_bytes AS DOUBLE) AS DOUBLE) AS slope,
    CAST(l.xy * l.xy AS DOUBLE) / CAST(NULLIF(l.xx * l.yy, 0) AS DOUBLE) AS r2
  FROM moments AS l
  WHERE l.xx > 0
)

SELECT
  f.run_id AS run_id,
  f.kind AS kind,
  f.axis AS axis,
  f.points AS points,
  f.async_points AS async_points,
  f.sizes AS sizes,
  f.slope AS slope_ps_per_byte,
  CAST(CAST(f.sum_ps AS DOUBLE) - f.slope * CAST(f.sum_bytes AS DOUBLE) AS DOUBLE) / CAST(f.points AS DOUBLE)
    AS intercept_ps,
  f.r2 AS r2
FROM lines AS f
