/*---
precondition: copies
needs: [device_ops]
reason: the devices ran no copy
---*/
SELECT run_id
FROM main.instructions
WHERE op_class = 'copy'
