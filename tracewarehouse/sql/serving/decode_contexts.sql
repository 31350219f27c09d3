/*---
model: decode_contexts
description: >
  Context and time of the steps whose batches decode alone and whose time is that of a whole step. The server states the
  shortest context among the requests of a batch; all count as long as it.
---*/
WITH servers AS (
  SELECT run_id, COUNT(DISTINCT "rank") AS ranks
  FROM main.step_batches
  GROUP BY run_id
),

contexts AS (
  SELECT
    run_id, step,
    SUM(requests) AS requests,
    SUM(decode_tokens) AS decode_tokens,
    SUM(requests * min_kv_length) AS context_tokens
  FROM main.step_batches
  WHERE step IS NOT NULL
  GROUP BY run_id, step
  HAVING
    COUNT(*) FILTER (WHERE requests IS NULL OR min_kv_length IS NULL OR COALESCE(decode_tokens, 0) = 0) = 0
    AND SUM(COALESCE(prefill_tokens, 0)) = 0
)

SELECT
  run_id, step,
  CAST(c.requests AS BIGINT) AS requests, -- Requests of the step, of all data-parallel ranks.
  r.ranks, -- Data-parallel ranks of the server, those of other steps included.
  CAST(c.decode_tokens AS BIGINT) AS decode_tokens, -- Tokens that it computes.
  CAST(c.context_tokens AS BIGINT) AS context_tokens, -- Tokens of context that all of them have together, at least.
  s.longest_ps -- Time of the step on the slowest device, start to next start.
FROM contexts AS c
INNER JOIN servers AS r USING (run_id)
INNER JOIN models.run_steps AS s USING (run_id, step)
WHERE s.is_timed AND COALESCE(s.phase, 'decode') = 'decode'
