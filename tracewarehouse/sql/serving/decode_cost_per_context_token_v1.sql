/*---
metric: decode_cost_per_context_token
version: 1
status: experimental
unit: us
polarity: lower_is_better
grain: [run_id, requests]
value: us_per_token
needs: [varied_contexts]
description: >
  What a decode step takes longer for each token of context: least squares of the time of decode steps, start to next
  start on the slowest device, on the tokens of context that all their requests have, by number of requests. The server
  states the shortest context among the requests; all count as long as it, which leaves the slope right while the same
  requests go on, since each then grows by a token per step. Only steps whose batches decode alone count, of all
  data-parallel ranks together. A row needs six steps, of three contexts or more. The interval holds 95 % of such slopes if
  the errors are normal, as in models.fitted_lines.
changed: First version.
---*/
SELECT
  run_id,
  requests, -- Requests of a step, of all data-parallel ranks.
  slope_ps / 1e6 AS us_per_token, -- Time of a step per token of context of all its requests together.
  (slope_ps - slope_error_ps) / 1e6 AS low_us_per_token, -- Lower end of its 95 % interval.
  (slope_ps + slope_error_ps) / 1e6 AS high_us_per_token, -- Upper end.
  intercept_ps / 1e6 AS base_us, -- Time of a step without context, by the line.
  r2, -- Share of the variance that the line explains; NULL where all steps take the same time.
  CAST(least_size AS BIGINT) AS least_context_tokens, -- Smallest context of a step.
  CAST(most_size AS BIGINT) AS most_context_tokens, -- Largest one.
  sizes AS contexts, -- Number of different ones.
  points AS steps -- Steps that it covers.
FROM models.fitted_lines
WHERE subject = 'decode' AND points >= 6 AND sizes >= 3
