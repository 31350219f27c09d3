/*---
precondition: padded_batches
needs: [recorded]
reason: no file of a server tells how many tokens its batches schedule and compute
remedy: put the batch files of vLLM on TPU beside the capture
---*/
SELECT run_id
FROM main.step_batches
WHERE padded_tokens > 0 AND scheduled_tokens IS NOT NULL
