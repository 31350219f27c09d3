/*---
precondition: memory_traffic
needs: [device_ops]
reason: the profiler does not say how many bytes ops access, as it does on TPUs
---*/
SELECT run_id
FROM models.instruction_costs
WHERE bytes_accessed > 0
