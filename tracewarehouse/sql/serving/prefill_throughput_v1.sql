/*---
status: experimental
unit: tokens/s
polarity: higher_is_better
grain: [run_id]
value: prompt_tokens_per_s
needs: [prompt_tokens]
description: >
  Prompt tokens per second of device time in prefill. The time of a prefill step is from the first op of its devices
  to the end of the last, so the host's pause before the next step does not count.
notes: >
  Where the server says what it scheduled, these are the tokens of the batches whose steps only prefill, over all
  data-parallel ranks; else those of batch size and input length, if the run has a single prefill.
  prefill_tokens_per_s of throughput is the same on the clock of the hosts, if they have markers.
---*/
SELECT
  run_id,
  c.tokens * 1e12 / c.time_ps AS prompt_tokens_per_s, -- Prompt tokens per second.
  -- The same per chip of the run, chips outside the capture included; NULL where their number is not known.
  c.tokens * 1e12 / (c.time_ps * NULLIF(h.chips, 0)) AS prompt_tokens_per_s_per_chip,
  c.tokens, -- Prompt tokens of these steps.
  c.time_ps / 1e9 AS time_ms, -- Time of these steps.
  c.steps, -- Prefill steps that count.
  c.token_source -- batches (what the server scheduled) or lengths (batch size and input length).
FROM models.prefill_work AS c
LEFT JOIN models.run_chips AS h USING (run_id)
