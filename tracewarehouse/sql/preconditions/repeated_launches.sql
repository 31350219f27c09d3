/*---
precondition: repeated_launches
needs: [device_ops]
reason: no device ran two programs one after the other
remedy: record more than one step
---*/
SELECT run_id
FROM main.phases
WHERE kind = 'module' AND device_id IS NOT NULL
GROUP BY run_id, device_id
HAVING COUNT(*) > 1
