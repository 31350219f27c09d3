/*---
precondition: prefill
needs: [phases]
reason: no step is a prefill
remedy: record from the start of a request
---*/
SELECT run_id
FROM models.steps
WHERE phase = 'prefill'
