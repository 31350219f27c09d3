/*---
precondition: layers
needs: [device_ops]
reason: no op is known to belong to a layer or part of the model
remedy: name them in the model with `jax.named_scope`
---*/
SELECT run_id
FROM main.instructions
WHERE layer IS NOT NULL OR stage_layer IS NOT NULL OR part IS NOT NULL
