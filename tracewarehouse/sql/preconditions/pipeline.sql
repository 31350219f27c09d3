/*---
precondition: pipeline
needs: [device_steps]
reason: nothing says that the run is a pipeline
remedy: if it is one, say so with `tw ingest --mesh pp=...`
---*/
SELECT run_id
FROM main.runs
WHERE pp > 1
