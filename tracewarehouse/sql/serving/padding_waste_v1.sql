/*---
status: experimental
unit: ratio
polarity: lower_is_better
grain: [run_id, kind]
value: padding_share
ranges: {padding_share: [0, 1]}
needs: [padded_batches]
description: >
  Share of the computed tokens that are padding, by kind of batch: (computed - scheduled) / computed tokens, summed over
  the batches of the kind, as the server states them. Batches without a step of their own count too.
---*/
SELECT
  run_id,
  -- prefill_only, prefill_heavy, balanced, decode_heavy, decode_only or ambiguous; NULL where the server does not say.
  kind,
  SUM(padded_tokens - scheduled_tokens) / SUM(padded_tokens) AS padding_share, -- Share that is padding.
  CAST(SUM(padded_tokens - scheduled_tokens) AS BIGINT) AS padding_tokens, -- Tokens of padding.
  CAST(SUM(scheduled_tokens) AS BIGINT) AS scheduled_tokens, -- Tokens that were scheduled.
  CAST(SUM(padded_tokens) AS BIGINT) AS computed_tokens, -- Tokens that were computed, padding included.
  COUNT(*) AS batches -- Batches that it covers.
FROM main.step_batches
WHERE padded_tokens > 0 AND scheduled_tokens IS NOT NULL
GROUP BY run_id, kind
