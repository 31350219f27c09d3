/*---
description: >
  A device that executes a collective (not a permute) but is in none of its groups, although the run's devices in these
  groups are known.
---*/
WITH placed AS (
  SELECT run_id, instruction_id, COUNT(device_id) AS devices
  FROM main.collective_groups
  GROUP BY run_id, instruction_id
)

SELECT
  run_id, instruction_id, c.device_id,
  COUNT(*) AS executions -- Executions on it.
FROM main.collectives AS c
INNER JOIN placed AS p USING (run_id, instruction_id)
WHERE c.group_index IS NULL AND p.devices > 0 AND c.kind NOT IN ('collective-permute', 'send', 'recv')
GROUP BY run_id, instruction_id, c.device_id
