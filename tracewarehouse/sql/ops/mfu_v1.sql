/*---
status: stable
unit: ratio
polarity: higher_is_better
grain: [run_id, phase]
value: mfu
ranges: {mfu: [0, 1]}
needs: [matrix_peak, known_phases, model_shape, known_tokens]
description: >
  Model FLOPs utilization: the operations that the model needs for a phase's tokens, over what all devices of the run
  could do at peak in the time of its steps. A server states the tokens, or else they follow from batch size and
  lengths. Devices outside the capture count too.
notes: >
  A step lasts from its start to the next one's on the slowest device. The last step counts only in a phase that has no
  other. A token takes 2 x active parameters, without the embedding tables and the output head, and for attention 4 x
  layers x width x context (models.model_shapes). The output head runs on one token of each sequence, in prefill too. If
  a server states the tokens of all these steps, they count as models.step_tokens has them. Else prefill has batch x
  input tokens, the i-th with a context of i. A decode step has batch tokens with a context of input + step, where
  prefill is step 0; a predicted step has the context that it was predicted for. Steps of several prefills then have no
  value. The peak is that of the type that takes most time of the phase's matrix products; if the capture does not show
  it, the peak is that of the run's dtype. Source: Chowdhery et al., PaLM (2022), appendix B, with a third of its
  training cost for the forward pass, and causal contexts.
ccl_bench: mfu
---*/
WITH products AS (
  SELECT run_id, phase, product_type, SUM(self_ps) AS self_ps
  FROM models.instruction_time
  WHERE product_type IS NOT NULL
  GROUP BY run_id, phase, product_type
),

-- the type that takes most of it
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

-- what the ops of the steps computed
worked AS (
  SELECT
    run_id, phase,
    CAST(SUM(model_flops * timed_ops) AS BIGINT) AS hlo_model_flops,
    SUM(timed_self_ps) AS self_ps,
    SUM(timed_self_ps) FILTER (WHERE model_flops IS NULL) AS unsized_ps
  FROM models.instruction_time
  WHERE op_class = 'compute' AND timed_ops > 0
  GROUP BY run_id, phase
),

-- the steps whose time is known
phases AS (
  SELECT
    run_id, phase,
    COUNT(*) AS all_steps,
    COUNT(*) FILTER (WHERE is_timed) AS steps,
    CAST(SUM(step) FILTER (WHERE is_timed) AS BIGINT) AS sum_of_steps,
    SUM(longest_ps) FILTER (WHERE is_timed) AS time_ps,
    COUNT(*) FILTER (WHERE is_timed AND is_last) AS last_steps
  FROM models.run_steps
  WHERE phase IN ('prefill', 'decode', 'mixed')
  GROUP BY run_id, phase
),

-- what a server states of these steps
served AS (
  SELECT
    run_id, s.phase,
    COUNT(*) AS steps,
    CAST(SUM(t.prefill_tokens + t.decode_tokens) AS BIGINT) AS tokens,
    CAST(SUM(t.head_tokens) AS BIGINT) AS head_tokens,
    CAST(SUM(t.contexts) AS BIGINT) AS contexts
  FROM models.run_steps AS s
  INNER JOIN models.step_tokens AS t USING (run_id, step)
  WHERE s.is_timed AND t.head_tokens IS NOT NULL AND t.contexts IS NOT NULL
  GROUP BY run_id, s.phase
),

-- tokens of these steps and the contexts that they attend to
counted AS (
  SELECT
    run_id, p.phase, p.steps, p.time_ps, p.last_steps, h.devices, h.body_params, h.head_params, h.layers_width,
    COALESCE(m.product_type, h.product_type) AS product_type,
    COALESCE(v.steps = p.steps, FALSE) AS is_served,
    CASE WHEN v.steps = p.steps THEN v.head_tokens ELSE h.sequences * p.steps END AS head_tokens,
    CASE
      WHEN v.steps = p.steps THEN v.tokens
      WHEN p.phase = 'decode' THEN h.sequences * p.steps
      WHEN p.phase = 'prefill' AND p.all_steps = 1 THEN h.sequences * h.input_length
    END AS tokens, CASE
      WHEN v.steps = p.steps THEN v.contexts
      WHEN p.phase = 'decode' AND d.context_tokens IS NOT NULL THEN h.sequences * d.context_tokens * p.steps
      WHEN p.phase = 'decode' THEN h.sequences * (h.input_length * p.steps + p.sum_of_steps)
      WHEN p.phase = 'prefill' AND p.all_steps = 1 THEN h.sequences * ((h.input_length * (h.input_length + 1)) // 2)
    END AS contexts
  FROM phases AS p
  INNER JOIN models.model_shapes AS h USING (run_id)
  LEFT JOIN multiplied AS m USING (run_id, phase)
  LEFT JOIN served AS v USING (run_id, phase)
  LEFT JOIN main.predictions AS d USING (run_id, phase)
),

-- operations of these tokens, and the peak of their type
needed AS (
  SELECT
    run_id, phase, c.steps, c.time_ps, c.last_steps, c.is_served, c.devices, c.tokens,
    2 * (c.body_params * c.tokens + c.head_params * c.head_tokens) + 4 * c.layers_width * c.contexts AS model_flops,
    g.hlo_model_flops,
    COALESCE(g.unsized_ps, 0) / NULLIF(g.self_ps, 0) AS unsized_share,
    product_type, k.peak_flops_per_s, k.devices AS devices_with_peak
  FROM counted AS c
  INNER JOIN peaks AS k USING (run_id, product_type)
  LEFT JOIN worked AS g USING (run_id, phase)
  WHERE c.time_ps > 0
)

SELECT
  run_id,
  phase, -- prefill, decode, or mixed.
  -- Utilization; NULL if the model's shape or the lengths are not known.
  model_flops * 1e12 / (CAST(time_ps AS DOUBLE) * devices * peak_flops_per_s) AS mfu,
  -- upper if the time is that of a last step, without the wait after it; else lower if a server states the contexts,
  -- because it states only the shortest.
  CASE WHEN last_steps > 0 THEN 'upper' WHEN is_served AND model_flops IS NOT NULL THEN 'lower' END AS bound,
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
