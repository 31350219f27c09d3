/*---
precondition: steps
needs: [recorded]
reason: no step is known
remedy: mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`
---*/
SELECT run_id
FROM models.steps
