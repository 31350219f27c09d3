/*---
precondition: transfer_bytes
needs: [whole_collectives, message_bytes]
reason: no collective is known to move bytes between devices
---*/
SELECT run_id
FROM main.collectives
WHERE instance IS NOT NULL AND NOT is_partial AND message_bytes > 0 AND group_size > 1
