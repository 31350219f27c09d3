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
WITH ranked AS (
  SELECT
    c.run_id AS run_id,
    c.instance AS instance,
    c.kind AS kind,
    c.device_id AS device_id,
    MAX(c.group_size) AS group_size,
    COUNT(*) AS ranks
  FROM main.collectives AS c
  WHERE NOT c.is_partial
  GROUP BY c.run_id, c.instance, c.kind, c.device_id
)

SELECT
  r.run_id AS run_id,
  r.instance AS instance,
  r.kind AS kind,
  MAX(r.group_size) AS group_size,
  CAST(SUM(r.ranks) AS BIGINT) AS ranks,
  COUNT(*) AS devices
FROM ranked AS r
GROUP BY r.run_id, r.instance, r.kind
HAVING
  SUM(r.ranks) <> COUNT(*)
  OR (r.kind NOT IN ('collective-permute', 'send', 'recv') AND SUM(r.ranks) <> MAX(r.group_size))
