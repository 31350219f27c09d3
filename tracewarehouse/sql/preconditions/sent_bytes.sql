/*---
precondition: sent_bytes
needs: [recorded, message_bytes]
reason: the bytes that a device sends are not known for any collective
---*/
SELECT run_id
FROM main.collectives
WHERE instance IS NOT NULL AND (wire_bytes > 0 OR is_partial AND message_bytes > 0)
