/*---
description: >
  Prompt tokens of prefill steps and the time of these steps, each from the first op of its devices to the end of the last.
  Where the server says what it scheduled, the tokens are those of the batches whose steps only prefill, over all
  data-parallel ranks; else those of batch size and input length, if the run has a single prefill.
---*/
WITH timed AS (
  SELECT run_id, step, MAX(last_end_ps) - MIN(first_start_ps) AS time_ps
  FROM models.device_busy
  WHERE phase = 'prefill'
  GROUP BY run_id, step
),

scheduled AS (
  SELECT
    run_id, step,
    SUM(prefill_tokens) AS tokens,
    COUNT(*) - COUNT(prefill_tokens) AS unknown,
    SUM(COALESCE(decode_tokens, 0)) AS decode_tokens
  FROM main.step_batches
  WHERE step IS NOT NULL
  GROUP BY run_id, step
),

of_batches AS (
  SELECT run_id, SUM(s.tokens) AS tokens, SUM(t.time_ps) AS time_ps, COUNT(*) AS steps
  FROM timed AS t
  INNER JOIN scheduled AS s USING (run_id, step)
  WHERE s.unknown = 0 AND s.decode_tokens = 0 AND s.tokens > 0
  GROUP BY run_id
),

single AS (
  SELECT run_id, SUM(time_ps) AS time_ps
  FROM timed
  GROUP BY run_id
  HAVING COUNT(*) = 1
),

counted AS (
  SELECT run_id, tokens, time_ps, steps, 'batches' AS token_source
  FROM of_batches
  UNION ALL
  SELECT
    run_id,
    CAST(r.batch_size AS BIGINT) * r.input_length AS tokens,
    p.time_ps, 1 AS steps, 'lengths' AS token_source
  FROM single AS p
  INNER JOIN main.runs AS r USING (run_id)
  LEFT JOIN of_batches AS b USING (run_id)
  WHERE b.run_id IS NULL AND r.batch_size * r.input_length > 0
)

SELECT
  run_id,
  CAST(tokens AS BIGINT) AS tokens, -- Prompt tokens.
  CAST(time_ps AS BIGINT) AS time_ps, -- Time of the steps.
  steps, -- Prefill steps that count.
  token_source -- batches (what the server scheduled) or lengths (batch size and input length).
FROM counted
WHERE time_ps > 0
