/*---
status: stable
unit: ratio
polarity: higher_is_better
scope: warehouse
grain: [run_id, baseline_run_id]
value: efficiency
needs: [known_throughput, model_name, lengths]
description: >
  Output tokens per second and chip, relative to the run of the same workload on the fewest chips. At 1, throughput
  grows with the chips. If several runs have the fewest chips, such as repeats, there is a row for each of them.
notes: >
  Two runs have the same workload if all that shapes the work is equal, or unknown for both: model, layers, sizes,
  parameters, precision, capacity factor, batch size, lengths, framework, kind of device, whether it is predicted, and
  what the prediction changed about the real slice and the rates that ship. Model, batch size and lengths must be known.
  The metric compares runs, so it is not stored with a run. Each query evaluates it from the stored values of throughput.
---*/
WITH rated AS (
  SELECT
    run_id, v.value AS tokens_per_s, c.chips,
    DENSE_RANK() OVER (
      ORDER BY
        r.model, r.model_family, r.num_layers, r.hidden_size, r.num_heads, r.head_dim, r.vocab_size,
        r.num_params, r.num_params_active, r.num_params_embedding, r.has_tied_embeddings, r.capacity_factor, r.dtype,
        r.batch_size, r.input_length, r.output_length, r.framework, r.backend, r.origin,
        w.ici_factor, w.hbm_factor, w.host_ps, w.kernels, w.calibration, c.kind
    ) AS workload
  FROM main.metric_values AS v
  INNER JOIN main.runs AS r USING (run_id)
  INNER JOIN models.run_chips AS c USING (run_id)
  LEFT JOIN models.what_ifs AS w USING (run_id)
  WHERE
    v.metric = 'throughput' AND v.version = 1 AND v.value > 0
    AND r.model IS NOT NULL AND r.batch_size IS NOT NULL AND r.input_length IS NOT NULL AND r.output_length IS NOT NULL
),

placed AS (
  SELECT
    *,
    MIN(chips) OVER (PARTITION BY workload) AS fewest_chips
  FROM rated
)

SELECT
  p.run_id,
  -- The run on the fewest chips with which it is compared; the run itself if it is one of those.
  b.run_id AS baseline_run_id,
  p.tokens_per_s * b.chips / (b.tokens_per_s * p.chips) AS efficiency, -- Throughput per chip over that of the baseline.
  p.tokens_per_s / b.tokens_per_s AS speedup, -- Throughput over that of the baseline.
  p.chips,
  b.chips AS baseline_chips -- Chips of the baseline.
FROM placed AS p
INNER JOIN placed AS b USING (workload)
WHERE b.chips = b.fewest_chips
