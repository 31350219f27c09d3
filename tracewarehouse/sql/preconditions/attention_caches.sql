/*---
precondition: attention_caches
needs: [device_ops]
reason: no attention kernel shows the shape of its cache of keys and values, as those of vLLM on TPU do
---*/
SELECT run_id
FROM models.attention_caches
