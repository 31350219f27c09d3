/*---
description: >
  Context and time of whole steps whose batches only decode. The server states the shortest context of a batch, and
  every request counts with it. A stretch is a sequence of steps with one number of requests, in which each rank's
  shortest context grows by one, so the same requests go on.
---*/
WITH servers AS (
  SELECT run_id, COUNT(DISTINCT "rank") AS ranks
  FROM main.step_batches
  GROUP BY run_id
),

followed AS (
  SELECT
    run_id, step, requests, min_kv_length, prefill_tokens, decode_tokens, CASE
      WHEN
        requests = LAG(requests) OVER (PARTITION BY run_id, "rank" ORDER BY position)
        AND min_kv_length = LAG(min_kv_length) OVER (PARTITION BY run_id, "rank" ORDER BY position) + 1
        THEN LAG(step) OVER (PARTITION BY run_id, "rank" ORDER BY position)
    END AS continued_step
  FROM main.step_batches
),

contexts AS (
  SELECT
    run_id, step,
    SUM(requests) AS requests,
    SUM(decode_tokens) AS decode_tokens,
    SUM(requests * min_kv_length) AS context_tokens,
    -- the oldest, so one rank that paused is enough to begin a stretch
    CASE WHEN COUNT(continued_step) = COUNT(*) THEN MIN(continued_step) END AS continued_step
  FROM followed
  WHERE step IS NOT NULL
  GROUP BY run_id, step
  HAVING
    COUNT(*) FILTER (WHERE requests IS NULL OR min_kv_length IS NULL OR COALESCE(decode_tokens, 0) = 0) = 0
    AND SUM(COALESCE(prefill_tokens, 0)) = 0
),

timed AS (
  SELECT
    run_id, step, c.requests, r.ranks, c.decode_tokens, c.context_tokens, s.start_ps, s.longest_ps, CASE
      WHEN
        c.continued_step = LAG(step) OVER (PARTITION BY run_id ORDER BY s.start_ps, step)
        AND c.requests = LAG(c.requests) OVER (PARTITION BY run_id ORDER BY s.start_ps, step)
        THEN 0
      ELSE 1
    END AS begins
  FROM contexts AS c
  INNER JOIN servers AS r USING (run_id)
  INNER JOIN models.run_steps AS s USING (run_id, step)
  WHERE s.is_timed AND COALESCE(s.phase, 'decode') = 'decode'
),

stretched AS (
  SELECT
    *,
    SUM(begins)
      OVER (PARTITION BY run_id ORDER BY start_ps, step ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS stretch
  FROM timed
)

SELECT
  run_id, step,
  CAST(requests AS BIGINT) AS requests, -- Requests of the step, of all data-parallel ranks.
  ranks, -- Data-parallel ranks of the server, those of other steps included.
  CAST(decode_tokens AS BIGINT) AS decode_tokens, -- Tokens that it computes.
  CAST(context_tokens AS BIGINT) AS context_tokens, -- Tokens of context of all requests together, at least.
  longest_ps, -- Time of the step on the slowest device, start to next start.
  CAST(stretch AS BIGINT) AS stretch, -- Number of its stretch in the run.
  COUNT(*) OVER (PARTITION BY run_id, stretch) AS stretch_steps, -- Steps of the stretch.
  ROW_NUMBER() OVER (PARTITION BY run_id, stretch ORDER BY start_ps, step) - 1 AS stretch_position -- Its place there, from 0.
FROM stretched
