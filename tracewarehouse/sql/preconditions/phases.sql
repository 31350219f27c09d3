/*---
precondition: phases
needs: [steps]
reason: no step is known as prefill or decode
remedy: mark the steps with these names, or name the decode program with `tw ingest --step PROGRAM`
---*/
SELECT run_id
FROM models.steps
WHERE phase IS NOT NULL
