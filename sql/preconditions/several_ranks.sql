/*---
precondition: several_ranks
needs: [whole_collectives]
reason: no collective has two ranks in the capture
---*/
SELECT run_id
FROM main.collectives
WHERE instance IS NOT NULL
GROUP BY run_id, instance
HAVING COUNT(*) FILTER (WHERE is_partial) = 0 AND COUNT(*) > 1
