/*---
precondition: collectives_in_steps
needs: [collectives]
reason: no step has a collective; all run before the first step or after the last
remedy: profile whole steps that communicate, or name their program with `tw ingest --step PROGRAM`
---*/
SELECT run_id
FROM main.collectives
WHERE phase IS NULL OR phase <> 'outside'
GROUP BY run_id
