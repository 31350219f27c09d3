/*---
description: >
  Tokens of the steps whose batches a server describes, of all data-parallel ranks together. The contexts are lower
  bounds.
notes: >
  The server states the shortest context of a batch, and every request that decodes counts with it. Prompts count as
  equally long, and as begun in this step.
---*/
WITH batches AS (
  SELECT
    run_id, step, prefill_tokens, decode_tokens, min_kv_length,
    -- a request that decodes has one token
    CASE WHEN prefill_tokens > 0 THEN GREATEST(requests - decode_tokens, 1) ELSE 0 END AS prompts
  FROM main.step_batches
  WHERE step IS NOT NULL
),

attended AS (
  SELECT
    *,
    CASE WHEN decode_tokens > 0 THEN decode_tokens * min_kv_length ELSE 0 END AS decode_contexts,
    CASE WHEN prompts > 0 THEN (prefill_tokens * (prefill_tokens + prompts)) // (2 * prompts) END AS prefill_contexts
  FROM batches
)

SELECT
  run_id, step,
  CAST(SUM(prefill_tokens) AS BIGINT) AS prefill_tokens, -- Tokens of prompts.
  CAST(SUM(decode_tokens) AS BIGINT) AS decode_tokens, -- Tokens of requests that generate.
  -- Tokens whose logits are computed: one of each prompt, and those that decode; NULL where requests are not stated.
  CASE WHEN COUNT(prompts) = COUNT(*) THEN CAST(SUM(prompts + decode_tokens) AS BIGINT) END AS head_tokens,
  -- Sum over all tokens of the context that each attends to, at least; NULL where contexts are not stated.
  CASE
    WHEN COUNT(decode_contexts) = COUNT(*) AND COUNT(prompts) = COUNT(*)
      THEN CAST(SUM(decode_contexts + COALESCE(prefill_contexts, 0)) AS BIGINT)
  END AS contexts
FROM attended
GROUP BY run_id, step
HAVING COUNT(prefill_tokens) = COUNT(*) AND COUNT(decode_tokens) = COUNT(*)
