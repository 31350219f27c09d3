/*---
precondition: whole_collectives
needs: [recorded, collectives]
reason: every collective has ranks outside the capture
remedy: ingest the captures of all hosts together
---*/
SELECT run_id
FROM main.collectives
WHERE instance IS NOT NULL
GROUP BY run_id, instance
HAVING COUNT(*) FILTER (WHERE is_partial) = 0
