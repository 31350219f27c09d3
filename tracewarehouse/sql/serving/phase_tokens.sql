/*---
description: >
  Tokens and time of the steps of each phase whose whole time is known. A server states the tokens, or else they follow
  from batch size and lengths. Without a server a run with several prefills has no row for them.
---*/
WITH phases AS (
  SELECT
    run_id, phase,
    COUNT(*) AS all_steps,
    COUNT(*) FILTER (WHERE is_timed) AS steps,
    SUM(longest_ps) FILTER (WHERE is_timed) AS time_ps
  FROM models.run_steps
  WHERE phase IN ('prefill', 'decode', 'mixed')
  GROUP BY run_id, phase
),

served AS (
  SELECT run_id, s.phase, COUNT(*) AS steps, CAST(SUM(t.prefill_tokens + t.decode_tokens) AS BIGINT) AS tokens
  FROM models.run_steps AS s
  INNER JOIN models.step_tokens AS t USING (run_id, step)
  WHERE s.is_timed
  GROUP BY run_id, s.phase
),

counted AS (
  SELECT
    run_id, phase, p.steps, p.time_ps, CASE
      WHEN v.steps = p.steps THEN v.tokens
      WHEN p.phase = 'decode' THEN CAST(r.batch_size AS BIGINT) * p.steps
      WHEN p.phase = 'prefill' AND p.all_steps = 1 THEN CAST(r.batch_size AS BIGINT) * r.input_length
    END AS tokens
  FROM phases AS p
  INNER JOIN main.runs AS r USING (run_id)
  LEFT JOIN served AS v USING (run_id, phase)
)

SELECT
  run_id,
  phase, -- prefill, decode, or mixed.
  steps, -- Steps of the phase that count.
  CAST(time_ps AS BIGINT) AS time_ps, -- Their time on the slowest device.
  tokens -- Tokens that they compute.
FROM counted
WHERE tokens > 0 AND time_ps > 0
