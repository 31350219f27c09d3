/*---
metric: mfu
version: 2
status: stable
unit: ratio
polarity: higher_is_better
grain: [run_id, phase]
value: mfu
requires: SELECT d.run_id FROM main.devices AS d WHERE d.peak_flops_per_s > 0
description: >
  Model FLOPs utilization: floating-point operations that the model needs for a phase's tokens over what all devices of the
  run, missing ones included, could do at their peak in the time of its steps, each from its start to the next one's on
  the slowest device. Per token and forward pass 2 x active parameters without the embedding tables, and attention 4 x
  layers x width x context, the width of all query heads (that of the residual stream where heads are not known). Prefill
  has batch x input tokens, the i-th with a context of i; a decode step has batch tokens with a context of input + step,
  steps counted from prefill at 0. Steps of several prefills, whose tokens are not known, have no value. Source:
  Chowdhery et al., PaLM (2022), appendix B, with a third of its training cost for the forward pass, and causal contexts.
columns:
  run_id: The run.
  phase: prefill or decode.
  mfu: Utilization; NULL where the model's shape or the lengths are not known.
  hlo_mfu: >
    The same of the profiler's model_flops of leaf ops that neither communicate nor copy, those between two steps counting
    for the one before; NULL where it states none.
  model_flops: Operations that the model needs; NULL where not known.
  hlo_model_flops: Those of the ops of the devices in the capture.
  time_ms: Time of the steps.
  tokens: Tokens of the phase; NULL where not known.
  steps: Steps of the phase.
  devices: Devices of the run, missing ones included.
changed: >
  The profiler's operations of ops between two steps count where their time does, as in hbm_bandwidth; version 1 counted
  their time alone, so that hlo_mfu lacked, for one, a projection to the vocabulary in a program of its own.
ccl_bench: mfu
---*/
WITH peaks AS (
  SELECT
    d.run_id AS run_id,
    MIN(d.peak_flops_per_s) AS peak_flops_per_s,
    COUNT(*) AS devices
  FROM main.devices AS d
  WHERE d.peak_flops_per_s > 0
  GROUP BY d.run_id
),

worked AS (
  SELECT
    e.run_id AS run_id,
    e.phase AS phase,
    CAST(SUM(i.model_flops * e.ops) AS BIGINT) AS hlo_model_flops
  FROM models.phase_instructions AS e
  INNER JOIN main.instructions AS i ON e.run_id = i.run_id AND e.instruction_id = i.instruction_id
  INNER JOIN models.instruction_kinds AS q ON e.run_id = q.run_id AND e.instruction_id = q.instruction_id
  WHERE q.is_compute
  GROUP BY e.run_id, e.phase
),

phases AS (
  SELECT
    s.run_id AS run_id,
    s.phase AS phase,
    COUNT(*) AS steps,
    CAST(SUM(s.step) AS BIGINT) AS sum_of_steps,
    CAST(SUM(s.longest_ps) AS BIGINT) AS time_ps
  FROM models.run_steps AS s
  WHERE s.phase IN ('prefill', 'decode')
  GROUP BY s.run_id, s.phase
),

shapes AS (
  SELECT
    r.run_id AS run_id,
    r.num_params_active - r.num_params_embedding AS params,
    CAST(r.num_layers AS BIGINT) * COALESCE(CAST(r.num_heads AS BIGINT) * r.head_dim, r.hidden_size) AS layers_width,
    CAST(r.batch_size AS BIGINT) AS sequences,
    CAST(r.input_length AS BIGINT) AS input_length,
    r.device_count + COALESCE(r.missing_devices, 0) AS devices
  FROM main.runs AS r
),

counted AS (
  SELECT
    p.run_id AS run_id,
    p.phase AS phase,
    p.steps AS steps,
    p.time_ps AS time_ps,
    h.devices AS devices,
    h.params AS params,
    h.layers_width AS layers_width,
    CASE
      WHEN p.phase = 'decode' THEN h.sequences * p.steps
      WHEN p.steps = 1 THEN h.sequences * h.input_length
      ELSE NULL
    END AS tokens,
    CASE
      WHEN p.phase = 'decode' THEN h.sequences * (h.input_length * p.steps + p.sum_of_steps)
      WHEN p.steps = 1 THEN h.sequences * ((h.input_length * (h.input_length + 1)) // 2)
      ELSE NULL
    END AS contexts
  FROM phases AS p
  INNER JOIN shapes AS h ON p.run_id = h.run_id
),

needed AS (
  SELECT
    c.run_id AS run_id,
    c.phase AS phase,
    c.steps AS steps,
    c.time_ps AS time_ps,
    c.devices AS devices,
    c.tokens AS tokens,
    2 * c.params * c.tokens + 4 * c.layers_width * c.contexts AS model_flops,
    g.hlo_model_flops AS hlo_model_flops,
    k.peak_flops_per_s AS peak_flops_per_s,
    k.devices AS devices_with_peak
  FROM counted AS c
  INNER JOIN peaks AS k ON c.run_id = k.run_id
  LEFT JOIN worked AS g ON c.run_id = g.run_id AND c.phase = g.phase
  WHERE c.time_ps > 0
)

SELECT
  n.run_id AS run_id,
  n.phase AS phase,
  CAST(CAST(n.model_flops AS DOUBLE) * CAST(1000000000000 AS DOUBLE) AS DOUBLE)
  / CAST(CAST(n.time_ps AS DOUBLE) * CAST(n.devices AS DOUBLE) * n.peak_flops_per_s AS DOUBLE) AS mfu,
  CAST(CAST(n.hlo_model_flops AS DOUBLE) * CAST(1000000000000 AS DOUBLE) AS DOUBLE)
  / CAST(CAST(n.time_ps AS DOUBLE) * CAST(n.devices_with_peak AS DOUBLE) * n.peak_flops_per_s AS DOUBLE) AS hlo_mfu,
  n.model_flops AS model_flops,
  n.hlo_model_flops AS hlo_model_flops,
  CAST(n.time_ps AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS time_ms,
  n.tokens AS tokens,
  n.steps AS steps,
  n.devices AS devices
FROM needed AS n
WHERE n.model_flops IS NOT NULL OR n.hlo_model_flops IS NOT NULL
