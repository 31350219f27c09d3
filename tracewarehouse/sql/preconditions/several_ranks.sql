/*---
precondition: several_ranks
needs: [recorded, collectives]
reason: no collective has two ranks in the capture
---*/
SELECT run_id
FROM main.collectives
WHERE instance IS NOT NULL
GROUP BY run_id, instance
HAVING COUNT(*) > 1
