/*---
description: >
  Tokens of the runs whose steps a server describes, from the first prefill to the last step that decodes. A step that
  prefills yields the first token of a prompt if the next step decodes for one request more. A request that ends in the
  same step hides one that begins.
---*/
WITH placed AS (
  SELECT
    run_id, step, phase, start_ps,
    MIN(CASE WHEN phase = 'prefill' THEN start_ps END) OVER (PARTITION BY run_id) AS first_ps,
    MAX(CASE WHEN phase IN ('decode', 'mixed') THEN start_ps END) OVER (PARTITION BY run_id) AS last_ps
  FROM models.run_steps
),

told AS (
  SELECT
    run_id, step, t.prefill_tokens, t.decode_tokens,
    LEAD(t.decode_tokens) OVER (PARTITION BY run_id ORDER BY p.start_ps, step) AS next_decode_tokens
  FROM placed AS p
  LEFT JOIN models.step_tokens AS t USING (run_id, step)
  WHERE p.start_ps >= p.first_ps AND p.start_ps <= p.last_ps
)

SELECT
  run_id,
  CAST(SUM(prefill_tokens) AS BIGINT) AS prefill_tokens, -- Tokens of prompts.
  CAST(SUM(decode_tokens) AS BIGINT) AS decode_tokens, -- Tokens of requests that generate.
  CAST(
    SUM(
      CASE WHEN prefill_tokens > 0 THEN GREATEST(COALESCE(next_decode_tokens, 0) - decode_tokens, 0) ELSE 0 END
    ) AS BIGINT
  ) AS first_tokens -- First tokens of prompts, at least.
FROM told
GROUP BY run_id
HAVING COUNT(decode_tokens) = COUNT(*)
