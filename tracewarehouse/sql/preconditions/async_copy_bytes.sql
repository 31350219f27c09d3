/*---
precondition: async_copy_bytes
needs: [paired_copies]
reason: the profiler does not say how many bytes asynchronous copies move
---*/
SELECT run_id
FROM main.instructions
WHERE op_class = 'copy' AND async_role = 'start' AND bytes_accessed > 0
