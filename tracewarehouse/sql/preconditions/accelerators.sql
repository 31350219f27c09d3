/*---
precondition: accelerators
needs: [recorded]
reason: the devices are virtual CPU devices, which have no peak rate
---*/
SELECT run_id
FROM main.runs
WHERE backend <> 'cpu'
