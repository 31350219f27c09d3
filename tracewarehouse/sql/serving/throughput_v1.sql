/*---
metric: throughput
version: 1
status: stable
unit: tokens/s
polarity: higher_is_better
grain: [run_id]
value: output_tokens_per_s
needs: [decode_after_prefill, one_prefill, batch_size]
description: >
  Output tokens per second from the start of prefill to the end of the last decode step. Each sequence of the batch has
  one token from prefill and one from each decode step in the capture. The time is on the hosts' clock if they have
  markers, otherwise on the devices'. A run with several prefills has no row, because its requests cannot be told apart.
  Decode steps before the prefill belong to other requests and do not count.
changed: First version.
ccl_bench: throughput
---*/
WITH clocks AS (
  SELECT run_id, MAX(clock) AS clock
  FROM models.request_times
  WHERE prefill_start_ps IS NOT NULL AND decode_end_ps IS NOT NULL
  GROUP BY run_id
),

timed AS (
  SELECT
    run_id, clock,
    CAST(r.batch_size AS BIGINT) AS sequences,
    CAST(r.input_length AS BIGINT) AS input_length,
    h.chips, t.decode_steps,
    t.decode_end_ps - t.prefill_start_ps AS total_ps,
    t.prefill_end_ps - t.prefill_start_ps AS prefill_ps,
    t.decode_end_ps - t.decode_start_ps AS decode_ps
  FROM models.request_times AS t
  INNER JOIN clocks USING (run_id, clock)
  INNER JOIN main.runs AS r USING (run_id)
  LEFT JOIN models.run_chips AS h USING (run_id)
  WHERE t.prefill_steps = 1 AND r.batch_size IS NOT NULL
)

SELECT
  run_id,
  sequences * (decode_steps + 1) / total_ps * 1e12 AS output_tokens_per_s, -- Output tokens of all sequences per second.
  -- Output tokens per second and chip of the run, including chips outside the capture.
  sequences * (decode_steps + 1) / (total_ps * NULLIF(chips, 0)) * 1e12 AS output_tokens_per_s_per_chip,
  -- Prompt tokens per second of prefill; NULL if the prompt length is unknown.
  sequences * input_length / NULLIF(prefill_ps, 0) * 1e12 AS prefill_tokens_per_s,
  -- Tokens of the decode steps per second of decode.
  sequences * decode_steps / NULLIF(decode_ps, 0) * 1e12 AS decode_tokens_per_s,
  sequences * (decode_steps + 1) AS output_tokens, -- Output tokens of all sequences.
  chips, -- Chips of the run; NULL if its devices are unknown.
  clock
FROM timed
WHERE total_ps > 0
