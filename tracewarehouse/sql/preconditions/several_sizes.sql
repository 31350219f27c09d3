/*---
precondition: several_sizes
needs: [transfer_bytes]
reason: no kind of collective moves messages of three sizes, each of them twice or more
remedy: record prefill and decode, or batches of several sizes
---*/
WITH sizes AS (
  SELECT run_id, kind, axis, bus_bytes
  FROM models.collective_instances
  WHERE NOT is_partial AND bus_bytes > 0
  GROUP BY run_id, kind, axis, bus_bytes
  HAVING COUNT(*) > 1
)

SELECT run_id
FROM sizes
GROUP BY run_id, kind, axis
HAVING COUNT(*) >= 3
