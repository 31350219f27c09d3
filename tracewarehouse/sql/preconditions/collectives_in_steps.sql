/*---
precondition: collectives_in_steps
needs: [collectives]
reason: no collective runs in a step that another one follows
remedy: profile whole steps that communicate, or name their program with `tw ingest --step PROGRAM`
---*/
SELECT run_id
FROM models.timed_collectives
