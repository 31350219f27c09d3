/*---
status: experimental
unit: us
polarity: lower_is_better
grain: [run_id, requests]
value: us_per_token
needs: [varied_contexts]
description: >
  How much longer a decode step takes for each token of context. Step times are fitted to the contexts of all requests,
  within stretches in which the same requests go on. A row needs six such steps with the same number of requests.
notes: >
  The fit is by least squares. A step's time is that from its start to the next start on the slowest device. Only steps
  whose batches decode alone count, of all data-parallel ranks together, in stretches of three or more, as in
  models.decode_contexts. The server states only the shortest context of a batch. In a stretch all contexts grow by one
  token a step, so the slope within stretches is right whatever the other contexts are. The interval holds 95 % of such
  slopes if the errors are normal, as in models.fitted_lines.
---*/
WITH stretches AS (
  SELECT
    run_id, requests, stretch,
    SUM(context_tokens) AS context_tokens,
    SUM(longest_ps) AS time_ps,
    COUNT(*) AS steps
  FROM models.decode_contexts
  WHERE stretch_steps > 2
  GROUP BY run_id, requests, stretch
),

covered AS (
  SELECT
    run_id, requests,
    MIN(context_tokens) AS least_context_tokens,
    MAX(context_tokens) AS most_context_tokens,
    COUNT(DISTINCT context_tokens) AS contexts
  FROM models.decode_contexts
  WHERE stretch_steps > 2
  GROUP BY run_id, requests
),

bases AS (
  SELECT
    run_id, s.requests,
    COUNT(*) AS stretches,
    MIN((s.time_ps - 2 * l.slope_ps * s.context_tokens) / s.steps) AS base_ps
  FROM stretches AS s
  INNER JOIN models.fitted_lines AS l USING (run_id, requests)
  WHERE l.subject = 'decode'
  GROUP BY run_id, s.requests
)

SELECT
  run_id,
  requests, -- Requests of a step, of all data-parallel ranks.
  2 * l.slope_ps / 1e6 AS us_per_token, -- Time of a step per token of context of all its requests together.
  2 * (l.slope_ps - l.slope_error_ps) / 1e6 AS low_us_per_token, -- Lower end of its 95 % interval, as in models.fitted_lines.
  2 * (l.slope_ps + l.slope_error_ps) / 1e6 AS high_us_per_token, -- Upper end.
  -- Upper bound of the time of a step without context: all contexts are taken to be as long as the shortest.
  b.base_ps / 1e6 AS base_us,
  l.r2, -- Share of the variance within the stretches that the line explains; NULL where all steps take the same time.
  c.least_context_tokens, -- Smallest context of a step, at least.
  c.most_context_tokens, -- Largest one, at least.
  c.contexts, -- Number of different contexts.
  b.stretches, -- Stretches in which the same requests go on.
  l.points AS steps -- Steps that it covers.
FROM models.fitted_lines AS l
INNER JOIN bases AS b USING (run_id, requests)
INNER JOIN covered AS c USING (run_id, requests)
WHERE l.subject = 'decode' AND l.points >= 6
