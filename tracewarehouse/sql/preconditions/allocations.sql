/*---
precondition: allocations
needs: [recorded]
reason: the capture has no allocations of memory with the bytes in use
---*/
SELECT e.run_id
FROM main.host_events AS e
INNER JOIN main.event_stats AS s USING (run_id, event_id)
WHERE
  e.name IN ('MemoryAllocation', 'MemoryDeallocation') AND s.name = 'bytes_allocated' AND s.int_value IS NOT NULL
