/*---
metric: mfu
version: 1
status: stable
unit: ratio
polarity: higher_is_better
grain: [run_id, phase]
value: mfu
ranges: {mfu: [0, 1]}
requires: SELECT run_id FROM main.devices WHERE peak_flops_per_s > 0
description: >
  Model FLOPs utilization: floating-point operations that the model needs for a phase's tokens over what all devices of the
  run, missing ones included, could do at their peak in the time of its steps, each from its start to the next one's on
  the slowest device. Per token and forward pass 2 x active parameters without the embedding tables, and attention 4 x
  layers x width x context, the width of all query heads (that of the residual stream where heads are not known). Prefill
  has batch x input tokens, the i-th with a context of i; a decode step has batch tokens with a context of input + step,
  steps counted from prefill at 0. Steps of several prefills, whose tokens are not known, have no value. Source:
  Chowdhery et al., PaLM (2022), appendix B, with a third of its training cost for the forward pass, and causal contexts.
changed: First version.
ccl_bench: mfu
---*/
WITH peaks AS (
  SELECT run_id, MIN(peak_flops_per_s) AS peak_flops_per_s, COUNT(*) AS devices
  FROM main.devices
  WHERE peak_flops_per_s > 0
  GROUP BY run_id
),

worked AS (
  SELECT run_id, e.phase, CAST(SUM(i.model_flops * e.ops) AS BIGINT) AS hlo_model_flops
  FROM models.instruction_time AS e
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  WHERE e.op_class = 'compute' AND e.is_in_device_phases
  GROUP BY run_id, e.phase
),

phases AS (
  SELECT run_id, phase, COUNT(*) AS steps, CAST(SUM(step) AS BIGINT) AS sum_of_steps, SUM(longest_ps) AS time_ps
  FROM models.run_steps
  WHERE phase IN ('prefill', 'decode')
  GROUP BY run_id, phase
),

shapes AS (
  SELECT
    run_id,
    num_params_active - num_params_embedding AS params,
    CAST(num_layers AS BIGINT) * COALESCE(CAST(num_heads AS BIGINT) * head_dim, hidden_size) AS layers_width,
    CAST(batch_size AS BIGINT) AS sequences,
    CAST(input_length AS BIGINT) AS input_length,
    device_count + COALESCE(missing_devices, 0) AS devices
  FROM main.runs
),

counted AS (
  SELECT
    run_id,
    p.phase,
    p.steps,
    p.time_ps,
    h.devices,
    h.params,
    h.layers_width,
    CASE
      WHEN p.phase = 'decode' THEN h.sequences * p.steps
      WHEN p.steps = 1 THEN h.sequences * h.input_length
    END AS tokens,
    CASE
      WHEN p.phase = 'decode' THEN h.sequences * (h.input_length * p.steps + p.sum_of_steps)
      WHEN p.steps = 1 THEN h.sequences * ((h.input_length * (h.input_length + 1)) // 2)
    END AS contexts
  FROM phases AS p
  INNER JOIN shapes AS h USING (run_id)
),

needed AS (
  SELECT
    run_id,
    phase,
    c.steps,
    c.time_ps,
    c.devices,
    c.tokens,
    2 * c.params * c.tokens + 4 * c.layers_width * c.contexts AS model_flops,
    g.hlo_model_flops,
    k.peak_flops_per_s,
    k.devices AS devices_with_peak
  FROM counted AS c
  INNER JOIN peaks AS k USING (run_id)
  LEFT JOIN worked AS g USING (run_id, phase)
  WHERE c.time_ps > 0
)

SELECT
  run_id, -- The run.
  phase, -- prefill or decode.
  -- Utilization; NULL where the model's shape or the lengths are not known.
  model_flops * 1e12 / (CAST(time_ps AS DOUBLE) * devices * peak_flops_per_s) AS mfu,
  -- The same of the profiler's model_flops of leaf ops that neither communicate nor copy, those between two steps
  -- counting for the one before; NULL where it states none.
  hlo_model_flops * 1e12 / (CAST(time_ps AS DOUBLE) * devices_with_peak * peak_flops_per_s) AS hlo_mfu,
  model_flops, -- Operations that the model needs; NULL where not known.
  hlo_model_flops, -- Those of the ops of the devices in the capture.
  time_ps / 1e9 AS time_ms, -- Time of the steps.
  tokens, -- Tokens of the phase; NULL where not known.
  steps, -- Steps of the phase.
  devices -- Devices of the run, missing ones included.
FROM needed
WHERE model_flops IS NOT NULL OR hlo_model_flops IS NOT NULL
