/*---
metric: mfu
version: 1
status: stable
unit: ratio
polarity: higher_is_better
grain: [run_id, phase]
value: mfu
ranges: {mfu: [0, 1]}
needs: [matrix_peak, known_phases, model_shape, batch_size, lengths]
description: >
  Model FLOPs utilization: the floating-point operations that the model needs for a phase's tokens, over what all
  devices of the run (missing ones included) could do at their peak in the time of its steps. A step lasts from its
  start to the next one's on the slowest device. A last step, which no other one follows, is left out with its tokens,
  because its time is not known; if a phase has no other, its own duration counts, and the value is an upper bound. A
  token and forward pass takes 2 x active parameters, without the embedding tables and the output head, and for
  attention 4 x layers x width x context. The width is that of all query heads (of the residual stream if heads are not
  known). The output head, vocabulary x residual stream, runs on one token of each sequence, in prefill too; if the
  vocabulary is not known, the head counts as large as the embedding table. Prefill has batch x input tokens, the i-th
  with a context of i. A decode step has batch tokens with a context of input + step, where prefill is step 0. Steps of
  several prefills, whose tokens are not known, have no value. The peak is that of the type in which most of the time of
  the phase's matrix products multiplies; if the capture does not show it, that of the run's dtype. Source: Chowdhery et
  al., PaLM (2022), appendix B, with a third of its training cost for the forward pass, and causal contexts.
changed: First version.
ccl_bench: mfu
---*/
WITH products AS (
  SELECT run_id, t.phase, c.product_type, SUM(t.self_ps) AS self_ps
  FROM models.instruction_time AS t
  INNER JOIN models.instruction_costs AS c USING (run_id, instruction_id)
  WHERE c.product_type IS NOT NULL
  GROUP BY run_id, t.phase, c.product_type
),

multiplied AS (
  SELECT run_id, phase, product_type
  FROM products
  QUALIFY ROW_NUMBER() OVER (PARTITION BY run_id, phase ORDER BY self_ps DESC, product_type) = 1
),

peaks AS (
  SELECT run_id, product_type, MIN(peak_flops_per_s) AS peak_flops_per_s, COUNT(*) AS devices
  FROM models.device_peaks
  GROUP BY run_id, product_type
),

worked AS (
  SELECT
    run_id, e.phase,
    CAST(SUM(c.model_flops * e.timed_ops) AS BIGINT) AS hlo_model_flops,
    SUM(e.timed_self_ps) AS self_ps,
    SUM(e.timed_self_ps) FILTER (WHERE c.model_flops IS NULL) AS unsized_ps
  FROM models.instruction_time AS e
  INNER JOIN models.instruction_costs AS c USING (run_id, instruction_id)
  WHERE e.op_class = 'compute' AND e.timed_ops > 0
  GROUP BY run_id, e.phase
),

phases AS (
  SELECT
    run_id, phase,
    COUNT(*) AS all_steps,
    COUNT(*) FILTER (WHERE is_timed) AS steps,
    CAST(SUM(step) FILTER (WHERE is_timed) AS BIGINT) AS sum_of_steps,
    SUM(longest_ps) FILTER (WHERE is_timed) AS time_ps,
    COUNT(*) FILTER (WHERE is_timed AND is_last) AS last_steps
  FROM models.run_steps
  WHERE phase IN ('prefill', 'decode')
  GROUP BY run_id, phase
),

sizes AS (
  SELECT
    run_id,
    num_params_active AS params,
    has_tied_embeddings,
    COALESCE(num_params_embedding, CAST(vocab_size AS BIGINT) * hidden_size) AS embedding_params,
    COALESCE(CAST(vocab_size AS BIGINT) * hidden_size, num_params_embedding) AS head_params,
    CAST(num_layers AS BIGINT) * COALESCE(CAST(num_heads AS BIGINT) * head_dim, hidden_size) AS layers_width,
    CAST(batch_size AS BIGINT) AS sequences,
    CAST(input_length AS BIGINT) AS input_length,
    device_count + COALESCE(missing_devices, 0) AS devices,
    CASE
      WHEN LOWER(dtype) LIKE '%int8%' THEN 'int8'
      WHEN LOWER(dtype) LIKE '%fp8%' OR LOWER(dtype) LIKE '%float8%' OR LOWER(dtype) LIKE 'f8%' THEN 'fp8'
      ELSE 'bf16'
    END AS product_type
  FROM main.runs
),

shapes AS (
  SELECT
    run_id,
    -- the parameters include a head of its own, unless it counts as one of the tables
    params - embedding_params
    - CASE WHEN has_tied_embeddings OR embedding_params >= 2 * head_params THEN 0 ELSE head_params END AS body_params,
    head_params, layers_width, sequences, input_length, devices, product_type
  FROM sizes
),

counted AS (
  SELECT
    run_id, p.phase, p.steps, p.time_ps, p.last_steps, h.devices, h.body_params, h.head_params,
    h.layers_width,
    COALESCE(m.product_type, h.product_type) AS product_type,
    h.sequences * p.steps AS head_tokens,
    CASE
      WHEN p.phase = 'decode' THEN h.sequences * p.steps
      WHEN p.all_steps = 1 THEN h.sequences * h.input_length
    END AS tokens,
    CASE
      WHEN p.phase = 'decode' THEN h.sequences * (h.input_length * p.steps + p.sum_of_steps)
      WHEN p.all_steps = 1 THEN h.sequences * ((h.input_length * (h.input_length + 1)) // 2)
    END AS contexts
  FROM phases AS p
  INNER JOIN shapes AS h USING (run_id)
  LEFT JOIN multiplied AS m USING (run_id, phase)
),

needed AS (
  SELECT
    run_id, phase, c.steps, c.time_ps, c.last_steps, c.devices, c.tokens,
    2 * (c.body_params * c.tokens + c.head_params * c.head_tokens) + 4 * c.layers_width * c.contexts AS model_flops,
    g.hlo_model_flops,
    COALESCE(g.unsized_ps, 0) / NULLIF(g.self_ps, 0) AS unsized_share,
    product_type, k.peak_flops_per_s,
    k.devices AS devices_with_peak
  FROM counted AS c
  INNER JOIN peaks AS k USING (run_id, product_type)
  LEFT JOIN worked AS g USING (run_id, phase)
  WHERE c.time_ps > 0
)

SELECT
  run_id,
  phase, -- prefill or decode.
  -- Utilization; NULL if the model's shape or the lengths are not known.
  model_flops * 1e12 / (CAST(time_ps AS DOUBLE) * devices * peak_flops_per_s) AS mfu,
  CASE WHEN last_steps > 0 THEN 'upper' END AS bound,
  -- Utilization by the model_flops of leaf ops that neither communicate nor copy, as the profiler states them or as
  -- given at ingest, over the time of the same steps. Ops between two steps count for the one before. NULL if none is
  -- known.
  hlo_model_flops * 1e12 / (CAST(time_ps AS DOUBLE) * devices_with_peak * peak_flops_per_s) AS hlo_mfu,
  model_flops, -- Operations that the model needs; NULL if unknown.
  hlo_model_flops, -- Operations by the model_flops of the ops in these steps, of the devices in the capture.
  -- Share of the ops' self time for which operations are not known, so that hlo_mfu lacks them; NULL without ops.
  unsized_share,
  time_ps / 1e9 AS time_ms, -- Time of the steps.
  tokens, -- Tokens of the steps; NULL if unknown.
  steps, -- Steps of the phase that count.
  devices, -- Devices of the run, including missing ones.
  product_type AS peak_type, -- Type of matrix product whose peak counts: bf16, int8 or fp8.
  peak_flops_per_s -- Peak of a device; the smallest if devices differ.
FROM needed
WHERE model_flops IS NOT NULL OR hlo_model_flops IS NOT NULL
