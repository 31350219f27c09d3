/*---
precondition: model_shape
needs: [model_name]
reason: neither manifest nor card gives the model's parameters and layers
remedy: put a card.yaml with them beside the capture
---*/
SELECT run_id
FROM main.runs
WHERE
  num_params_active IS NOT NULL AND num_layers IS NOT NULL
  AND (num_params_embedding IS NOT NULL OR vocab_size IS NOT NULL AND hidden_size IS NOT NULL)
  AND (num_heads IS NOT NULL AND head_dim IS NOT NULL OR hidden_size IS NOT NULL)
