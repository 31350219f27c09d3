/*---
audit: device_in_no_group
description: >
  A device that executes a collective, other than a permute, without being in one of its groups, though these are known
  as devices of the run.
columns:
  run_id: The run.
  instruction_id: The instruction.
  device_id: The device.
  executions: Executions on it.
---*/
WITH placed AS (
  SELECT
    g.run_id AS run_id,
    g.instruction_id AS instruction_id,
    COUNT(g.device_id) AS devices
  FROM main.collective_groups AS g
  GROUP BY g.run_id, g.instruction_id
)

SELECT
  c.run_id AS run_id,
  c.instruction_id AS instruction_id,
  c.device_id AS device_id,
  COUNT(*) AS executions
FROM main.collectives AS c
INNER JOIN placed AS p ON c.run_id = p.run_id AND c.instruction_id = p.instruction_id
WHERE c.group_index IS NULL AND p.devices > 0 AND c.kind NOT IN ('collective-permute', 'send', 'recv')
GROUP BY c.run_id, c.instruction_id, c.device_id
