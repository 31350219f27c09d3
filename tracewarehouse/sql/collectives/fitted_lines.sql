/*---
description: >
  Least-squares lines through measured times. Subject transfer fits the transfer times of a kind and axis to the bytes
  that a device sends. Subject decode fits the times of decode steps with equally many requests to their context, both
  as differences from the middle of their stretch.
notes: >
  A line needs two sizes and more points than it has unknowns: the slope, and a level for each stretch. Differences from the mean are taken in whole units of their range, one part
  in 2^20 or finer, so that sums stay exact integers. The intervals hold 95 % of such fits if the errors are normal:
  estimate -+ t x standard error. t is the quantile of Student's distribution with points - stretches - 1 degrees of freedom, from
  the expansion in Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.5, whose error is below 0.04
  % from 4 degrees on.
---*/
WITH points AS (
  SELECT
    run_id, 'transfer' AS subject, kind, axis, CAST(NULL AS BIGINT) AS requests, is_async, bus_bytes AS size,
    transfer_ps AS time_ps, 0 AS begun_stretches
  FROM models.collective_instances
  WHERE NOT is_partial AND bus_bytes > 0 AND transfer_ps IS NOT NULL
  UNION ALL
  SELECT
    run_id, 'decode' AS subject, NULL AS kind, NULL AS axis,
    CAST(requests AS BIGINT) AS requests,
    FALSE AS is_async,
    -- twice the tokens since the middle of the stretch, whose sum over the stretch is 0
    requests * (2 * stretch_position + 1 - stretch_steps) AS size,
    longest_ps
    - CAST(SUM(longest_ps) OVER (PARTITION BY run_id, requests, stretch) AS BIGINT) // stretch_steps AS time_ps,
    CASE WHEN stretch_position = 0 THEN 1 ELSE 0 END AS begun_stretches
  FROM models.decode_contexts
  WHERE stretch_steps > 2
),

sized AS (
  SELECT
    run_id, subject, kind, axis, requests, size,
    COUNT(*) AS points,
    SUM(begun_stretches) AS begun_stretches,
    COUNT(*) FILTER (WHERE is_async) AS async_points,
    SUM(size) AS sum_size,
    SUM(time_ps) AS sum_ps,
    MIN(time_ps) AS least_ps,
    MAX(time_ps) AS most_ps
  FROM points
  GROUP BY run_id, subject, kind, axis, requests, size
),

ranges AS (
  SELECT
    run_id, subject, kind, axis, requests,
    CAST(SUM(points) AS BIGINT) AS points,
    CAST(SUM(points) - 1 - GREATEST(SUM(begun_stretches), 1) AS BIGINT) AS freedom,
    CAST(SUM(async_points) AS BIGINT) AS async_points,
    COUNT(*) AS sizes,
    COUNT(*) FILTER (WHERE points > 1) AS repeated_sizes,
    MIN(size) AS least_size,
    MAX(size) AS most_size,
    SUM(sum_size) AS sum_size,
    SUM(sum_ps) AS sum_ps,
    MAX(most_ps) - MIN(least_ps) AS range_ps,
    CASE WHEN SUM(points) < 1024 THEN 67108864 WHEN SUM(points) < 65536 THEN 8388608 ELSE 1048576 END AS finest
  FROM sized
  GROUP BY run_id, subject, kind, axis, requests
  HAVING SUM(points) > 1 + GREATEST(SUM(begun_stretches), 1)
),

units AS (
  SELECT *, (most_size - least_size) // finest + 1 AS unit_size, range_ps // finest + 1 AS unit_ps
  FROM ranges
),

differences AS (
  SELECT
    u.*,
    (p.size - u.sum_size // u.points) // u.unit_size AS x,
    (p.time_ps - u.sum_ps // u.points) // u.unit_ps AS y
  FROM points AS p
  INNER JOIN units AS u
    ON
      p.run_id = u.run_id
      AND p.subject = u.subject
      AND p.kind IS NOT DISTINCT FROM u.kind
      AND p.axis IS NOT DISTINCT FROM u.axis
      AND p.requests IS NOT DISTINCT FROM u.requests
),

summed AS (
  SELECT
    run_id, subject, kind, axis, requests, points, freedom, async_points, sizes, repeated_sizes, least_size, most_size,
    sum_size, sum_ps, unit_size, unit_ps,
    SUM(x) AS sum_x,
    SUM(y) AS sum_y,
    SUM(x * x) AS sum_xx,
    SUM(x * y) AS sum_xy,
    SUM(y * y) AS sum_yy
  FROM differences
  GROUP BY
    run_id, subject, kind, axis, requests, points, freedom, async_points, sizes, repeated_sizes, least_size, most_size,
    sum_size, sum_ps, unit_size, unit_ps
),

moments AS (
  SELECT
    *,
    CAST(sum_xx AS DOUBLE) - CAST(sum_x AS DOUBLE) * CAST(sum_x AS DOUBLE) / points AS xx,
    CAST(sum_xy AS DOUBLE) - CAST(sum_x AS DOUBLE) * CAST(sum_y AS DOUBLE) / points AS xy,
    CAST(sum_yy AS DOUBLE) - CAST(sum_y AS DOUBLE) * CAST(sum_y AS DOUBLE) / points AS yy
  FROM summed
),

lines AS (
  SELECT
    run_id, subject, kind, axis, requests, points, async_points, sizes, repeated_sizes, least_size, most_size,
    CAST(sum_size AS DOUBLE) / points AS mean_size,
    CAST(sum_ps AS DOUBLE) / points AS mean_ps,
    xx * CAST(unit_size AS DOUBLE) * CAST(unit_size AS DOUBLE) AS square_size,
    xy * CAST(unit_ps AS DOUBLE) / (xx * CAST(unit_size AS DOUBLE)) AS slope,
    xy * xy / (xx * NULLIF(yy, 0)) AS r2,
    -- sum of squared distances from the line over its degrees of freedom
    GREATEST(yy - xy * xy / xx, 0) * CAST(unit_ps AS DOUBLE) * CAST(unit_ps AS DOUBLE) / freedom AS variance,
    1.95996398e0
    + 2.37227123e0 / freedom
    + 2.82249862e0 / (freedom * freedom)
    + 2.55584968e0 / (freedom * freedom * freedom)
    + 1.58953405e0 / (freedom * freedom * freedom * freedom) AS t
  FROM moments
  WHERE xx > 0
)

SELECT
  run_id,
  subject, -- What the times are of: transfer or decode.
  kind, -- Kind of collective, of a transfer.
  axis, -- Mesh axes of its groups, of a transfer.
  requests, -- Requests of a decode step.
  points, -- Number of points.
  async_points, -- Points of asynchronous collectives.
  sizes,
  repeated_sizes, -- Sizes that have several points.
  least_size, -- Smallest size, in bytes, or half tokens since the middle of the stretch.
  most_size, -- Largest one.
  slope AS slope_ps, -- Time per byte or half token.
  t * SQRT(variance / square_size) AS slope_error_ps, -- Half of its 95 % interval.
  mean_ps - slope * mean_size AS intercept_ps, -- Time at size 0.
  t * SQRT(variance * (1e0 / points + mean_size * mean_size / square_size)) AS intercept_error_ps, -- Half of its interval.
  r2 -- Share of the variance that the line explains; NULL if all times are equal.
FROM lines
