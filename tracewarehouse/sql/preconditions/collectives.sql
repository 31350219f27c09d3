/*---
precondition: collectives
needs: [device_programs]
reason: the devices ran no collective
---*/
SELECT run_id
FROM main.collectives
