/*---
precondition: device_steps
needs: [device_ops]
reason: no step of a device is known
remedy: mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`
---*/
SELECT run_id
FROM models.steps
WHERE clock = 'device'
