/*---
model: decode_contexts
description: >
  Context and time of the steps whose batches decode alone and whose time is that of a whole step. The server states the
  shortest context among the requests of a batch; all count as long as it.
---*/
WITH contexts AS (
  SELECT run_id, step, SUM(requests) AS requests, SUM(requests * min_kv_length) AS context_tokens
  FROM main.step_batches
  WHERE step IS NOT NULL
  GROUP BY run_id, step
  HAVING
    COUNT(*) FILTER (WHERE requests IS NULL OR min_kv_length IS NULL OR COALESCE(decode_tokens, 0) = 0) = 0
    AND SUM(COALESCE(prefill_tokens, 0)) = 0
)

SELECT
  run_id, -- The run.
  step, -- Step.
  CAST(c.requests AS BIGINT) AS requests, -- Requests of the step, of all data-parallel ranks.
  CAST(c.context_tokens AS BIGINT) AS context_tokens, -- Tokens of context that all of them have together, at least.
  s.longest_ps -- Time of the step on the slowest device, start to next start.
FROM contexts AS c
INNER JOIN models.run_steps AS s USING (run_id, step)
WHERE s.is_timed AND COALESCE(s.phase, 'decode') = 'decode'
