/*---
precondition: sent_bytes
needs: [message_bytes]
reason: of no collective is it known what a device sends
---*/
SELECT run_id
FROM main.collectives
WHERE instance IS NOT NULL AND (wire_bytes > 0 OR is_partial AND message_bytes > 0)
