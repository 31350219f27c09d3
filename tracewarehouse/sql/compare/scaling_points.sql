/*---
parameters: [runs]
reads_runs: [runs]
description: >
  Best throughput of a workload on each number of chips, beside perfect scaling from the fewest. A workload needs two
  numbers of chips. Predicted and recorded runs are different workloads.
notes: >
  Workloads differ where metrics.scaling_efficiency says so, as in layers or precision. Those of one model, batch size
  and lengths are told apart by a number. Only devices of one kind are compared.
---*/
WITH points AS (
  SELECT *
  FROM macros.run_points(runs)
  WHERE tokens_per_s IS NOT NULL AND chips IS NOT NULL
),

placed AS (
  SELECT
    p.series || ', batch ' || p.batch_size || ', ' || p.input_length || ' in, ' || p.output_length || ' out' AS named,
    p.device_kind, p.chips, p.tokens_per_s, p.mesh,
    DENSE_RANK() OVER (
      ORDER BY
        r.model, r.model_family, r.num_layers, r.hidden_size, r.num_heads, r.head_dim, r.vocab_size,
        r.num_params, r.num_params_active, r.num_params_embedding, r.has_tied_embeddings, r.capacity_factor, r.dtype,
        r.batch_size, r.input_length, r.output_length, r.framework, r.backend, r.origin,
        w.ici_factor, w.hbm_factor, w.host_ps, w.kernels, w.calibration
    ) AS work
  FROM points AS p
  INNER JOIN main.runs AS r USING (run_id)
  LEFT JOIN models.what_ifs AS w USING (run_id)
),

best AS (
  SELECT
    named, work, device_kind, chips,
    MAX(tokens_per_s) AS tokens_per_s,
    ARG_MAX(mesh, (tokens_per_s, mesh)) AS mesh
  FROM placed
  GROUP BY named, work, device_kind, chips
),

scaled AS (
  SELECT
    *,
    FIRST_VALUE(tokens_per_s / chips) OVER (PARTITION BY work, device_kind ORDER BY chips) * chips
      AS linear_tokens_per_s
  FROM best
  QUALIFY COUNT(*) OVER (PARTITION BY work, device_kind) > 1
),

numbered AS (
  SELECT *, DENSE_RANK() OVER (PARTITION BY named ORDER BY work) AS place
  FROM scaled
)

SELECT
  -- Model, batch and lengths; with a number where these are of several workloads.
  CASE WHEN MAX(place) OVER (PARTITION BY named) > 1 THEN named || ' (' || place || ')' ELSE named END AS workload,
  device_kind, chips, tokens_per_s,
  mesh, -- Mesh of the run.
  linear_tokens_per_s -- Output tokens per second if each chip gave as many as on the fewest chips.
FROM numbered
