/*---
precondition: device_ops
needs: [recorded]
reason: no device ran an op
remedy: profile the devices too, not only the host
---*/
SELECT run_id
FROM main.ops
WHERE is_leaf AND device_id IS NOT NULL
