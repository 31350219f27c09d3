/*---
precondition: consecutive_collectives
needs: [recorded, collectives]
reason: no device ran two collectives in a phase
---*/
SELECT run_id
FROM main.collectives
GROUP BY run_id, device_id, phase
HAVING COUNT(*) > 1
