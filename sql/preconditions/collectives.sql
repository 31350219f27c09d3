/*---
precondition: collectives
needs: [device_ops]
reason: the devices ran no collective
---*/
SELECT run_id
FROM main.collectives
