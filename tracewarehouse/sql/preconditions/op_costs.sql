/*---
precondition: op_costs
needs: [device_ops]
reason: the profiler does not say what ops cost, as it does on TPUs
---*/
SELECT run_id
FROM models.instruction_costs
WHERE flops > 0 OR bytes_accessed > 0
