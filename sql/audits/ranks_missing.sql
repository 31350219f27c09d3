/*---
audit: ranks_missing
description: >
  An execution of a collective that has not as many ranks as its group has devices, or one device twice, without being
  marked as partial.
columns:
  run_id: The run.
  instance: The execution.
  kind: Kind of collective.
  group_size: Devices in its group.
  ranks: Ranks in the capture.
  devices: Distinct devices among them.
---*/
SELECT
  c.run_id AS run_id,
  c.instance AS instance,
  c.kind AS kind,
  MAX(c.group_size) AS group_size,
  COUNT(*) AS ranks,
  COUNT(DISTINCT c.device_id) AS devices
FROM main.collectives AS c
WHERE NOT c.is_partial
GROUP BY c.run_id, c.instance, c.kind
HAVING
  COUNT(*) <> COUNT(DISTINCT c.device_id)
  OR (c.kind NOT IN ('collective-permute', 'send', 'recv') AND COUNT(*) <> MAX(c.group_size))
