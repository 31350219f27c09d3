/*---
precondition: decode_contexts
needs: [decode_batches]
reason: there are no six decode steps with as many requests and three different contexts
remedy: record more steps
---*/
SELECT run_id
FROM models.decode_contexts
GROUP BY run_id, requests
HAVING COUNT(*) >= 6 AND COUNT(DISTINCT context_tokens) >= 3
