/*---
description: >
  An execution of a collective that has fewer or more ranks than its group has devices, or one device twice, and is not
  marked as partial.
---*/
WITH ranked AS (
  SELECT run_id, instance, kind, device_id, MAX(group_size) AS group_size, COUNT(*) AS ranks
  FROM main.collectives
  WHERE NOT is_partial
  GROUP BY run_id, instance, kind, device_id
)

SELECT
  run_id, instance, kind,
  MAX(group_size) AS group_size, -- Devices in its group.
  CAST(SUM(ranks) AS BIGINT) AS ranks, -- Ranks in the capture.
  COUNT(*) AS devices -- Distinct devices among them.
FROM ranked
GROUP BY run_id, instance, kind
HAVING SUM(ranks) <> COUNT(*) OR (kind NOT IN ('collective-permute', 'send', 'recv') AND SUM(ranks) <> MAX(group_size))
