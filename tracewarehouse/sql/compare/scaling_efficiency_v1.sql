/*---
metric: scaling_efficiency
version: 1
status: stable
unit: ratio
polarity: higher_is_better
scope: warehouse
grain: [run_id, baseline_run_id]
value: efficiency
needs: [known_throughput, model_name, lengths]
description: >
  Output tokens per second and chip, relative to the run of the same workload on the fewest chips; at 1, throughput
  grows with the chips. Two runs have the same workload if model, batch size, prompt and output length are equal, and if
  precision and kind of device are equal or unknown for both. If several runs have the fewest chips, such as repeats,
  there is a row for each of them. The metric compares runs, so it is not stored with a run: each query evaluates it
  from the stored values of throughput version 2.
changed: First version.
---*/
WITH rated AS (
  SELECT
    run_id,
    v.value AS tokens_per_s,
    c.chips,
    COALESCE(c.kind, '') AS kind,
    r.model,
    COALESCE(r.dtype, '') AS dtype,
    r.batch_size, r.input_length, r.output_length
  FROM main.metric_values AS v
  INNER JOIN main.runs AS r USING (run_id)
  INNER JOIN models.run_chips AS c USING (run_id)
  WHERE v.metric = 'throughput' AND v.version = 1 AND v.value > 0
),

placed AS (
  SELECT
    *,
    MIN(chips) OVER (PARTITION BY model, batch_size, input_length, output_length, dtype, kind) AS fewest_chips
  FROM rated
)

SELECT
  p.run_id,
  -- The run on the fewest chips with which it is compared; the run itself if it is one of those.
  b.run_id AS baseline_run_id,
  p.tokens_per_s * b.chips / (b.tokens_per_s * p.chips) AS efficiency, -- Throughput per chip over that of the baseline.
  p.tokens_per_s / b.tokens_per_s AS speedup, -- Throughput over that of the baseline.
  p.chips, -- Chips of the run.
  b.chips AS baseline_chips -- Chips of the baseline.
FROM placed AS p
INNER JOIN placed AS b USING (model, batch_size, input_length, output_length, dtype, kind)
WHERE b.chips = b.fewest_chips
