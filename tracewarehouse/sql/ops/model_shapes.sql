/*---
description: >
  The sizes of a run's model that decide how many floating-point operations a token takes. These are its parameters
  without embedding tables and output head, the parameters of the head, and the width of attention over all layers.
notes: >
  Without the number of heads the width is that of the residual stream. Without the vocabulary the head counts as
  large as the embedding table.
---*/
WITH sizes AS (
  SELECT
    run_id, num_params_active AS params, has_tied_embeddings,
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
)

SELECT
  run_id,
  -- Active parameters of the layers. The stated parameters include a head of its own, unless it counts as one of the tables.
  params - embedding_params
  - CASE WHEN has_tied_embeddings OR embedding_params >= 2 * head_params THEN 0 ELSE head_params END AS body_params,
  head_params, -- Parameters of the output head.
  layers_width, -- Layers times width of attention.
  sequences, -- Sequences of a step.
  input_length, -- Prompt tokens per sequence.
  devices, -- Devices of the run, including missing ones.
  product_type -- Type of matrix product that the run's dtype stands for: bf16, int8 or fp8.
FROM sizes
