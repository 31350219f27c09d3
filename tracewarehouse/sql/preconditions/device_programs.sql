/*---
precondition: device_programs
reason: no device ran an op
remedy: profile the devices too, not the host alone
---*/
SELECT run_id
FROM main.ops
WHERE is_leaf AND device_id IS NOT NULL
UNION ALL
SELECT run_id
FROM main.runs
WHERE format LIKE 'hlo%'
