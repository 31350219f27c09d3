/*---
precondition: ranks_to_compare
needs: [recorded, collectives]
reason: only one rank of each collective is in the capture
remedy: ingest the captures of all hosts together
---*/
SELECT run_id
FROM main.collectives
WHERE instance IS NOT NULL
GROUP BY run_id, instance
HAVING COUNT(*) > 1 OR COUNT(*) FILTER (WHERE is_partial) = 0
