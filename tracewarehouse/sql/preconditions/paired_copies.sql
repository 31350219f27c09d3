/*---
precondition: paired_copies
needs: [async_copies]
reason: no asynchronous copy has both its start and its done in the capture
---*/
SELECT run_id
FROM main.instructions AS s
INNER JOIN main.instructions AS d USING (run_id)
WHERE
  s.op_class = 'copy' AND s.async_role = 'start' AND d.async_role = 'done' AND s.name = d.async_start
  AND s.program_id IS NOT DISTINCT FROM d.program_id
