/*---
precondition: one_prefill
needs: [prefill]
reason: the capture has several prefills, whose requests cannot be told apart
remedy: record one request, or one batch
---*/
SELECT run_id
FROM models.steps
WHERE phase = 'prefill'
GROUP BY run_id, clock
HAVING COUNT(DISTINCT step) = 1
