/*---
precondition: async_copies
needs: [copies]
reason: the devices ran no asynchronous copy
---*/
SELECT run_id
FROM main.instructions
WHERE op_class = 'copy' AND async_role = 'start'
