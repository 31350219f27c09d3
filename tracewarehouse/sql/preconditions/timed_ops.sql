/*---
precondition: timed_ops
needs: [device_ops]
reason: every op of the devices ends when it starts
---*/
SELECT run_id
FROM main.ops
WHERE is_leaf AND device_id IS NOT NULL AND self_ps > 0
