/*---
description: >
  What CCL-Bench's metrics read from the workload card. Where the card is blank or absent, the value comes from the
  capture. Only the ccl_* metrics and the card of an exported row use it.
---*/
WITH counted AS (
  SELECT run_id, COUNT(*) AS steps
  FROM models.run_steps
  GROUP BY run_id
)

SELECT
  run_id,
  COALESCE(NULLIF(LOWER(r.card ->> '$.workload.model.phase'), ''), 'inference') AS phase, -- training or inference.
  -- Iterations in the trace, or else steps of the run; NULL without any.
  COALESCE(CAST(NULLIF(r.card ->> '$.workload.model.iteration', '') AS BIGINT), n.steps) AS iterations,
  -- Tokens generated per sequence.
  COALESCE(CAST(NULLIF(r.card ->> '$.workload.data.output_len', '') AS BIGINT), r.output_length) AS output_length,
  -- Chips of the whole run.
  COALESCE(CAST(NULLIF(r.card ->> '$.workload.hardware.xpu_spec.total_count', '') AS BIGINT), c.chips) AS chips,
  -- Chip as CCL-Bench writes it, such as tpu_v6e; for other chips than TPUs, the kind of the devices.
  COALESCE(
    NULLIF(LOWER(r.card ->> '$.workload.hardware.xpu_spec.model'), ''),
    CASE
      WHEN LOWER(c.kind) IN ('tpu v6 lite', 'tpu v6e') THEN 'tpu_v6e'
      WHEN LOWER(c.kind) IN ('tpu v5 lite', 'tpu v5e') THEN 'tpu_v5e'
      WHEN LOWER(c.kind) IN ('tpu v5', 'tpu v5p') THEN 'tpu_v5p'
      WHEN LOWER(c.kind) = 'tpu v4' THEN 'tpu_v4'
      WHEN LOWER(c.kind) IN ('tpu7x', 'tpu v7x') THEN 'tpu_v7x'
      ELSE c.kind
    END
  ) AS hardware,
  -- Chip as the card states it; NULL if it states none.
  NULLIF(LOWER(r.card ->> '$.workload.model.phase'), '') AS stated_phase,
  COALESCE(CAST(NULLIF(r.card ->> '$.workload.hardware.xpu_spec.total_count', '') AS BIGINT), 1) AS gpus, -- Chips, or 1.
  -- Parameters that each token uses, without the embedding.
  COALESCE(r.num_params_active, r.num_params) - COALESCE(r.num_params_embedding, 0) AS parameters,
  -- Layers times width of a head times heads times length of a sequence.
  r.num_layers * r.head_dim * r.num_heads
  * COALESCE(CAST(NULLIF(r.card ->> '$.workload.data.seq_len', '') AS BIGINT), 1) AS attention_parameters,
  -- Tokens of a step as CCL-Bench counts them: sequences times their length.
  COALESCE(CAST(NULLIF(r.card ->> '$.workload.data.batch_size', '') AS BIGINT), 1)
  * COALESCE(CAST(NULLIF(r.card ->> '$.workload.data.seq_len', '') AS BIGINT), 1) AS tokens
FROM main.runs AS r
LEFT JOIN counted AS n USING (run_id)
LEFT JOIN models.run_chips AS c USING (run_id)
