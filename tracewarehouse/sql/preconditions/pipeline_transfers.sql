/*---
precondition: pipeline_transfers
needs: [pipeline]
reason: no collective runs between the stages of the pipeline
---*/
SELECT run_id
FROM main.collectives
WHERE axis = 'pp' AND step IS NOT NULL
