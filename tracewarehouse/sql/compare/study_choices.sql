/*---
parameters: [runs]
reads_runs: [runs]
description: >
  The best configuration of each workload and the best of another mesh: for one user, for the first token, for tokens
  per chip, and for cost. A configuration that does not fit in memory does not compete. A workload with one
  configuration has no row.
notes: >
  Another mesh is one with the same batch, if there is one with it. Where all configurations have one mesh, the second
  best takes its place. Cost has a row only if it is known for all configurations. If prompts are not known for all
  configurations, tokens per chip and cost have rows for decode steps alone.
---*/
WITH points AS (
  SELECT *
  FROM macros.study_points(runs)
  WHERE COALESCE(is_fitting, TRUE)
),

-- workloads of which not every configuration has a prefill
partial AS (
  SELECT
    workload,
    COUNT(tokens_per_s_per_chip) > 0 AS has_prompts,
    COUNT(usd_per_chip_hour) = COUNT(*) AS is_priced
  FROM points
  GROUP BY workload
  HAVING COUNT(tokens_per_s_per_chip) < COUNT(*)
),

decoding AS (
  SELECT
    workload, d.has_prompts, p.run_id, p.configuration,
    CASE WHEN d.is_priced THEN p.usd_per_chip_hour * 1e6 / 3.6e3 END AS usd,
    p.batch_size * p.tokens_per_s_per_user / p.chips AS rate,
    p.batch_size * p.user_low / p.chips AS low,
    p.batch_size * p.user_high / p.chips AS high
  FROM points AS p
  INNER JOIN partial AS d USING (workload)
),

rated AS (
  SELECT
    workload, run_id, configuration,
    1 AS "position",
    'one user' AS purpose, 'tokens/s per user' AS unit,
    tokens_per_s_per_user AS value, user_low AS low, user_high AS high,
    -tokens_per_s_per_user AS badness
  FROM points
  UNION ALL
  SELECT
    workload, run_id, configuration,
    2 AS "position",
    'the first token' AS purpose, 'ms' AS unit, ttft_ms AS value, ttft_low_ms AS low, ttft_high_ms AS high,
    ttft_ms AS badness
  FROM points
  UNION ALL
  SELECT
    workload, run_id, configuration,
    3 AS "position",
    'most tokens per chip' AS purpose, 'tokens/s per chip' AS unit,
    tokens_per_s_per_chip AS value, chip_low AS low, chip_high AS high,
    -tokens_per_s_per_chip AS badness
  FROM points
  UNION ALL
  SELECT
    workload, run_id, configuration,
    CASE WHEN has_prompts THEN 5 ELSE 3 END AS "position",
    'most tokens per chip in decode' AS purpose, 'tokens/s per chip' AS unit, rate AS value, low, high,
    -rate AS badness
  FROM decoding
  UNION ALL
  SELECT
    workload, run_id, configuration,
    6 AS "position",
    'least cost in decode' AS purpose, 'USD per million output tokens' AS unit,
    usd / rate AS value,
    usd / high AS low,
    usd / low AS high,
    usd / rate AS badness
  FROM decoding
  UNION ALL
  SELECT
    workload, run_id, configuration,
    4 AS "position",
    'least cost' AS purpose,
    'USD per million output tokens, prompts included' AS unit,
    usd_per_million_tokens AS value,
    usd_per_million_tokens * tokens_per_s_per_chip / chip_high AS low,
    usd_per_million_tokens * tokens_per_s_per_chip / chip_low AS high,
    usd_per_million_tokens AS badness
  FROM points
),

-- workloads whose price is not known for every configuration
unpriced AS (
  SELECT workload
  FROM points
  GROUP BY workload
  HAVING COUNT(usd_per_million_tokens) < COUNT(*)
),

ranked AS (
  SELECT
    r.*,
    p.mesh, p.batch_size,
    ROW_NUMBER() OVER (PARTITION BY r.workload, r."position" ORDER BY r.badness, r.configuration, r.run_id) AS place
  FROM rated AS r
  INNER JOIN points AS p ON r.run_id = p.run_id
  WHERE r.value IS NOT NULL AND NOT (r."position" = 4 AND r.workload IN (SELECT u.workload FROM unpriced AS u))
),

following AS (
  SELECT
    n.*,
    ROW_NUMBER() OVER (
      PARTITION BY n.workload, n."position"
      ORDER BY n.mesh IS NOT DISTINCT FROM b.mesh, n.batch_size IS DISTINCT FROM b.batch_size, n.place
    ) AS nearness
  FROM ranked AS n
  INNER JOIN ranked AS b ON n.workload = b.workload AND n."position" = b."position" AND b.place = 1
  WHERE n.place > 1
)

SELECT
  b.workload,
  b."position", -- Order of the purposes.
  -- one user, the first token, most tokens per chip or least cost; the last two also in decode.
  b.purpose,
  b.run_id, -- The best run.
  b.configuration, -- Its configuration.
  b.value, -- What it reaches.
  b.unit, -- The unit of value.
  b.low, -- Low end of the range of a predicted one.
  b.high, -- High end.
  n.configuration AS next_configuration, -- The best of another mesh.
  n.value AS next_value, -- What that one reaches.
  n.low AS next_low, -- Low end of its range, if it is predicted.
  n.high AS next_high, -- High end.
  -- Whether the ranges of the two overlap, so that either may be the better one; NULL without ranges.
  b.low <= n.high AND n.low <= b.high AS is_within_range
FROM ranked AS b
INNER JOIN following AS n ON b.workload = n.workload AND b."position" = n."position" AND n.nearness = 1
WHERE b.place = 1
