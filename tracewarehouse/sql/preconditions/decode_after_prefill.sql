/*---
precondition: decode_after_prefill
needs: [prefill, decode]
reason: no decode step follows the prefill
remedy: record a request until its last token
---*/
WITH bounds AS (
  SELECT
    run_id,
    MIN(start_ps) FILTER (WHERE phase = 'prefill') AS first_prefill_ps,
    MAX(start_ps) FILTER (WHERE phase = 'decode') AS last_decode_ps
  FROM models.steps
  GROUP BY run_id, clock
)

SELECT run_id
FROM bounds
WHERE last_decode_ps >= first_prefill_ps
