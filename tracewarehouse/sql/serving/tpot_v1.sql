/*---
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, clock]
value: tpot_ms
needs: [followed_decode]
description: >
  Mean time per output token: from the start of a step that decodes to the start of the next one. A step counts with the
  time of its slowest device or host. Steps that prefill and decode count too.
notes: >
  A decode step counts if another one follows, because it ends where that one starts. A run without two decode steps in
  a row has no row. Percentiles are by nearest rank.
ccl_bench: tpot
---*/
-- the gap after the last step that decodes may be idle time of the server, so it says nothing about a token
WITH tokens AS (
  SELECT run_id, clock, step, MAX(step_ps) AS token_ps, MIN(source) AS source
  FROM models.steps
  WHERE is_followed_decode
  GROUP BY run_id, clock, step
),

ranked AS (
  SELECT run_id, clock, token_ps, source, CUME_DIST() OVER (PARTITION BY run_id, clock ORDER BY token_ps) AS quantile
  FROM tokens
)

SELECT
  run_id, clock,
  SUM(token_ps) / (COUNT(*) * 1e9) AS tpot_ms, -- Mean time of a step that decodes.
  COUNT(*) AS steps, -- Steps that count.
  MIN(token_ps) FILTER (WHERE quantile >= 0.5) / 1e9 AS p50_ms, -- Median.
  MIN(token_ps) FILTER (WHERE quantile >= 0.9) / 1e9 AS p90_ms, -- 90th percentile.
  MIN(token_ps) FILTER (WHERE quantile >= 0.99) / 1e9 AS p99_ms, -- 99th percentile.
  MIN(source) AS source -- Where the steps come from.
FROM ranked
GROUP BY run_id, clock
