/*---
status: stable
unit: tokens/s
polarity: higher_is_better
grain: [run_id]
value: output_tokens_per_s
needs: [decode_after_prefill, told_requests, told_sequences]
description: >
  Output tokens per second from the start of prefill to the end of the last step that decodes. The tokens are those that a
  server states of its batches. Else each sequence of the batch has one token from prefill and one from each decode step.
notes: >
  The time is on the hosts' clock if they have markers that time steps, and else on the devices'. Marks under which a
  host only launches steps do not time them (models.launched_runs). Steps before the first prefill belong to other
  requests and do not count. If no server states the tokens, a run with several prefills has no row, because its
  requests cannot be told apart. A server does not state which prompts end in a step; models.served_output says how
  their first tokens are counted.
ccl_bench: throughput
---*/
WITH clocks AS (
  SELECT
    t.run_id,
    CASE WHEN COUNT(l.run_id) > 0 THEN MIN(t.clock) ELSE MAX(t.clock) END AS clock
  FROM models.request_times AS t
  LEFT JOIN models.launched_runs AS l ON t.run_id = l.run_id
  WHERE t.prefill_start_ps IS NOT NULL AND t.decode_end_ps IS NOT NULL
  GROUP BY t.run_id
),

timed AS (
  SELECT
    run_id, clock, h.chips,
    CASE WHEN s.run_id IS NULL THEN 'lengths' ELSE 'batches' END AS token_source,
    COALESCE(s.decode_tokens, CAST(r.batch_size AS BIGINT) * t.decode_steps) AS decode_tokens,
    COALESCE(s.first_tokens, CAST(r.batch_size AS BIGINT)) AS first_tokens,
    COALESCE(s.prefill_tokens, CAST(r.batch_size AS BIGINT) * r.input_length) AS prefill_tokens,
    t.decode_end_ps - t.prefill_start_ps AS total_ps,
    CASE WHEN t.prefill_steps = 1 AND t.mixed_steps = 0 THEN t.prefill_end_ps - t.prefill_start_ps END AS prefill_ps,
    t.decode_end_ps - t.decode_start_ps AS decode_ps
  FROM models.request_times AS t
  INNER JOIN clocks USING (run_id, clock)
  INNER JOIN main.runs AS r USING (run_id)
  LEFT JOIN models.run_chips AS h USING (run_id)
  LEFT JOIN models.served_output AS s USING (run_id)
  WHERE s.run_id IS NOT NULL OR (t.prefill_steps = 1 AND t.mixed_steps = 0 AND r.batch_size IS NOT NULL)
)

SELECT
  run_id,
  (decode_tokens + first_tokens) / total_ps * 1e12 AS output_tokens_per_s, -- Output tokens of all sequences per second.
  -- Output tokens per second and chip of the run, including chips outside the capture.
  (decode_tokens + first_tokens) / (total_ps * NULLIF(chips, 0)) * 1e12 AS output_tokens_per_s_per_chip,
  -- Prompt tokens per second of prefill; NULL if their number is unknown, or if there are several prefills.
  prefill_tokens / NULLIF(prefill_ps, 0) * 1e12 AS prefill_tokens_per_s,
  -- Tokens of the steps that decode, per second from the first to the last of them.
  decode_tokens / NULLIF(decode_ps, 0) * 1e12 AS decode_tokens_per_s,
  decode_tokens + first_tokens AS output_tokens, -- Output tokens of all sequences.
  token_source, -- batches (what the server scheduled) or lengths (batch size and decode steps).
  chips, -- Chips of the run; NULL if its devices are unknown.
  clock
FROM timed
WHERE total_ps > 0
