/*---
precondition: product_costs
needs: [device_ops]
reason: of no matrix product are operand types and operations known
remedy: tell the operations of kernels with `tw ingest --costs FILE`
---*/
SELECT run_id
FROM models.instruction_costs
WHERE product_type IS NOT NULL AND (model_flops > 0 OR flops > 0)
