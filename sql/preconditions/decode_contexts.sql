/*---
precondition: decode_contexts
needs: [decode]
reason: the contexts of six decode steps with as many requests, three different ones among them, are not known
remedy: put the batch files of vLLM on TPU beside a capture of enough decode steps
---*/
SELECT run_id
FROM models.decode_contexts
GROUP BY run_id, requests
HAVING COUNT(*) >= 6 AND COUNT(DISTINCT context_tokens) >= 3
