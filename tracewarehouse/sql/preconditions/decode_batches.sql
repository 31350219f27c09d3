/*---
precondition: decode_batches
needs: [decode]
reason: no file of a server tells how long the contexts of decode steps are
remedy: put the batch files of vLLM on TPU beside the capture
---*/
SELECT run_id
FROM models.decode_contexts
