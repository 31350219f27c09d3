/*---
precondition: prefill_ops
needs: [device_ops, prefill]
reason: no device ran an op in a prefill step
---*/
SELECT run_id
FROM models.device_busy
WHERE phase = 'prefill' AND last_end_ps > first_start_ps
