/*---
metric: decode_cost_per_context_token
version: 1
status: experimental
unit: us
polarity: lower_is_better
grain: [run_id, requests]
value: us_per_token
needs: [decode_contexts]
description: >
  What a decode step takes longer for each token of context: least squares of the time of decode steps, start to next
  start on the slowest device, on the tokens of context that all their requests have, by number of requests. The server
  states the shortest context among the requests; all count as long as it, which leaves the slope right while the same
  requests go on, since each then grows by a token per step. Only steps whose batches decode alone count, of all
  data-parallel ranks together. A row needs six steps, of three contexts or more. The interval holds 95 % of such slopes if
  the errors are normal, as in transfer_fit.
changed: First version.
---*/
WITH ranges AS (
  SELECT
    run_id,
    requests,
    COUNT(*) AS points,
    COUNT(DISTINCT context_tokens) AS contexts,
    MIN(context_tokens) AS least_tokens,
    MAX(context_tokens) AS most_tokens,
    SUM(context_tokens) AS sum_tokens,
    SUM(longest_ps) AS sum_ps,
    MAX(context_tokens) - MIN(context_tokens) AS range_tokens,
    MAX(longest_ps) - MIN(longest_ps) AS range_ps,
    CASE WHEN COUNT(*) < 1024 THEN 67108864 WHEN COUNT(*) < 65536 THEN 8388608 ELSE 1048576 END AS finest
  FROM models.decode_contexts
  GROUP BY run_id, requests
  HAVING COUNT(*) >= 6 AND COUNT(DISTINCT context_tokens) >= 3
),

-- in whole units of their range, so that sums stay exact integers
differences AS (
  SELECT
    run_id,
    requests,
    (p.context_tokens - r.sum_tokens // r.points) // (r.range_tokens // r.finest + 1) AS x,
    (p.longest_ps - r.sum_ps // r.points) // (r.range_ps // r.finest + 1) AS y
  FROM models.decode_contexts AS p
  INNER JOIN ranges AS r USING (run_id, requests)
),

summed AS (
  SELECT
    run_id,
    requests,
    SUM(x) AS sum_x,
    SUM(y) AS sum_y,
    SUM(x * x) AS sum_xx,
    SUM(x * y) AS sum_xy,
    SUM(y * y) AS sum_yy
  FROM differences
  GROUP BY run_id, requests
),

moments AS (
  SELECT
    run_id,
    requests,
    r.points,
    r.contexts,
    r.least_tokens,
    r.most_tokens,
    r.sum_tokens,
    r.sum_ps,
    r.range_tokens // r.finest + 1 AS unit_tokens,
    r.range_ps // r.finest + 1 AS unit_ps,
    CAST(s.sum_xx AS DOUBLE) - CAST(s.sum_x AS DOUBLE) * CAST(s.sum_x AS DOUBLE) / r.points AS xx,
    CAST(s.sum_xy AS DOUBLE) - CAST(s.sum_x AS DOUBLE) * CAST(s.sum_y AS DOUBLE) / r.points AS xy,
    CAST(s.sum_yy AS DOUBLE) - CAST(s.sum_y AS DOUBLE) * CAST(s.sum_y AS DOUBLE) / r.points AS yy
  FROM summed AS s
  INNER JOIN ranges AS r USING (run_id, requests)
),

lines AS (
  SELECT
    run_id,
    requests,
    points,
    contexts,
    least_tokens,
    most_tokens,
    CAST(sum_tokens AS DOUBLE) / points AS mean_tokens,
    CAST(sum_ps AS DOUBLE) / points AS mean_ps,
    xy / xx * (CAST(unit_ps AS DOUBLE) / unit_tokens) AS slope,
    SQRT(GREATEST(yy - xy * xy / xx, 0) / ((points - 2) * xx)) * (CAST(unit_ps AS DOUBLE) / unit_tokens) AS slope_error,
    xy * xy / (xx * NULLIF(yy, 0)) AS r2,
    1.95996398e0
    + 2.37227123e0 / (points - 2)
    + 2.82249862e0 / ((points - 2) * (points - 2))
    + 2.55584968e0 / ((points - 2) * (points - 2) * (points - 2))
    + 1.58953405e0 / ((points - 2) * (points - 2) * (points - 2) * (points - 2)) AS t
  FROM moments
  WHERE xx > 0
)

SELECT
  run_id, -- The run.
  requests, -- Requests of a step, of all data-parallel ranks.
  slope / 1e6 AS us_per_token, -- Time of a step per token of context of all its requests together.
  (slope - t * slope_error) / 1e6 AS low_us_per_token, -- Lower end of its 95 % interval.
  (slope + t * slope_error) / 1e6 AS high_us_per_token, -- Upper end.
  (mean_ps - slope * mean_tokens) / 1e6 AS base_us, -- Time of a step without context, by the line.
  r2, -- Share of the variance that the line explains; NULL where all steps take the same time.
  CAST(least_tokens AS BIGINT) AS least_context_tokens, -- Smallest context of a step.
  CAST(most_tokens AS BIGINT) AS most_context_tokens, -- Largest one.
  contexts, -- Number of different ones.
  points AS steps -- Steps that it covers.
FROM lines
