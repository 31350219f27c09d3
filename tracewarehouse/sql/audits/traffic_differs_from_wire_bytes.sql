/*---
description: >
  A device whose row or column of the traffic matrix of one execution does not add up to the bytes that it sends or
  receives, in a collective whose ranks are all in the capture. In ring and pairwise algorithms a device receives as
  much as it sends. In a permute its own bytes do not tell what it receives, so only rows are compared.
---*/
WITH moved AS (
  SELECT run_id, instruction_id, source_device_id AS device_id, 'sent' AS direction, bytes
  FROM main.traffic
  UNION ALL
  SELECT run_id, instruction_id, target_device_id AS device_id, 'received' AS direction, bytes
  FROM main.traffic
),

summed AS (
  SELECT run_id, instruction_id, device_id, direction, SUM(bytes) AS traffic_bytes
  FROM moved
  GROUP BY run_id, instruction_id, device_id, direction
),

executed AS (
  SELECT
    run_id, instruction_id, device_id,
    MIN(kind) AS kind,
    MIN(wire_bytes) AS least_bytes,
    MAX(wire_bytes) AS most_bytes
  FROM main.collectives
  WHERE NOT is_partial AND wire_bytes IS NOT NULL
  GROUP BY run_id, instruction_id, device_id
),

expected AS (
  SELECT run_id, instruction_id, device_id, kind, 'sent' AS direction, least_bytes, most_bytes
  FROM executed
  UNION ALL
  SELECT run_id, instruction_id, device_id, kind, 'received' AS direction, least_bytes, most_bytes
  FROM executed
  WHERE kind NOT IN ('collective-permute', 'send', 'recv')
)

SELECT
  run_id, instruction_id, device_id,
  direction, -- sent for its row, received for its column.
  e.most_bytes AS wire_bytes, -- Bytes that the device sends in one execution.
  CAST(COALESCE(u.traffic_bytes, 0) AS BIGINT) AS traffic_bytes -- Sum of its row or column of the matrix.
FROM expected AS e
LEFT JOIN summed AS u USING (run_id, instruction_id, device_id, direction)
WHERE
  (e.kind <> 'send' OR u.traffic_bytes IS NOT NULL) -- else its target is not known
  AND (e.least_bytes <> COALESCE(u.traffic_bytes, 0) OR e.most_bytes <> COALESCE(u.traffic_bytes, 0))
