/*---
metric: throughput
version: 2
status: stable
unit: tokens/s
polarity: higher_is_better
grain: [run_id]
value: output_tokens_per_s
requires: SELECT r.run_id FROM main.runs AS r WHERE r.batch_size IS NOT NULL
description: >
  Output tokens per second from the start of prefill to the end of the last decode step. Per sequence of the batch there
  is one token from prefill and one from each decode step in the capture. The clock is the hosts' where they have
  markers, else the devices'. A run with several prefills, whose requests cannot be told apart, has no row; decode steps
  before the prefill are of other requests and do not count.
columns:
  run_id: The run.
  output_tokens_per_s: Output tokens of all sequences per second.
  output_tokens_per_s_per_chip: The same per chip of the run, chips outside the capture included.
  prefill_tokens_per_s: Prompt tokens per second of prefill; NULL where the prompt length is not known.
  decode_tokens_per_s: Tokens of the decode steps per second of decode.
  output_tokens: Output tokens of all sequences.
  chips: Chips of the run; NULL where its devices are not known.
  clock: host or device.
changed: >
  Per chip instead of per device, and chips that are not in the capture count; version 1 divided by the devices in the
  capture alone, so that a slice of which one host was captured seemed faster.
ccl_bench: throughput
---*/
WITH clocks AS (
  SELECT
    c.run_id AS run_id,
    MAX(c.clock) AS clock
  FROM models.request_times AS c
  WHERE c.prefill_start_ps IS NOT NULL AND c.decode_end_ps IS NOT NULL
  GROUP BY c.run_id
),

timed AS (
  SELECT
    t.run_id AS run_id,
    t.clock AS clock,
    CAST(r.batch_size AS BIGINT) AS sequences,
    CAST(r.input_length AS BIGINT) AS input_length,
    h.chips AS chips,
    t.decode_steps AS decode_steps,
    t.decode_end_ps - t.prefill_start_ps AS total_ps,
    t.prefill_end_ps - t.prefill_start_ps AS prefill_ps,
    t.decode_end_ps - t.decode_start_ps AS decode_ps
  FROM models.request_times AS t
  INNER JOIN clocks AS k ON t.run_id = k.run_id AND t.clock = k.clock
  INNER JOIN main.runs AS r ON t.run_id = r.run_id
  LEFT JOIN models.run_chips AS h ON t.run_id = h.run_id
  WHERE t.prefill_steps = 1 AND r.batch_size IS NOT NULL
)

SELECT
  e.run_id AS run_id,
  CAST(e.sequences * (e.decode_steps + 1) AS DOUBLE) / CAST(e.total_ps AS DOUBLE) * CAST(1000000000000 AS DOUBLE)
    AS output_tokens_per_s,
  CAST(e.sequences * (e.decode_steps + 1) AS DOUBLE) / CAST(e.total_ps * NULLIF(e.chips, 0) AS DOUBLE)
  * CAST(1000000000000 AS DOUBLE) AS output_tokens_per_s_per_chip,
  CAST(e.sequences * e.input_length AS DOUBLE) / CAST(NULLIF(e.prefill_ps, 0) AS DOUBLE)
  * CAST(1000000000000 AS DOUBLE) AS prefill_tokens_per_s,
  CAST(e.sequences * e.decode_steps AS DOUBLE) / CAST(NULLIF(e.decode_ps, 0) AS DOUBLE)
  * CAST(1000000000000 AS DOUBLE) AS decode_tokens_per_s,
  e.sequences * (e.decode_steps + 1) AS output_tokens,
  e.chips AS chips,
  e.clock AS clock
FROM timed AS e
WHERE e.total_ps > 0
