/*---
precondition: several_devices
needs: [device_ops]
reason: only one device is in the capture
---*/
SELECT run_id
FROM main.ops
WHERE is_leaf AND device_id IS NOT NULL
GROUP BY run_id
HAVING MIN(device_id) < MAX(device_id)
