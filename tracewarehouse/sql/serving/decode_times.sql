/*---
description: >
  Time and context of each decode step before another step. The context is the shortest that the server's batch states,
  or else the input length plus the number of the step. A predicted step has the context that it was predicted for.
---*/
WITH served AS (
  SELECT run_id, COUNT(*) AS batches
  FROM main.step_batches
  GROUP BY run_id
)

SELECT
  run_id, t.step,
  -- Tokens that a sequence attends to.
  CASE
    WHEN s.run_id IS NULL THEN COALESCE(p.context_tokens, r.input_length + t.step)
    ELSE c.context_tokens // c.requests
  END AS context_tokens,
  t.step_time_ms -- Time of the step on the slowest device.
FROM metrics.step_time_v1 AS t
INNER JOIN main.runs AS r USING (run_id)
LEFT JOIN served AS s USING (run_id)
LEFT JOIN models.decode_contexts AS c ON t.run_id = c.run_id AND t.step = c.step
LEFT JOIN main.predictions AS p ON t.run_id = p.run_id AND t.phase = p.phase
WHERE
  t.phase = 'decode'
  AND t.step_time_ms IS NOT NULL
  AND CASE WHEN s.run_id IS NULL THEN r.input_length ELSE c.context_tokens END IS NOT NULL
