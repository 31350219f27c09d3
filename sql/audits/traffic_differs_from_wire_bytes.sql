/*---
audit: traffic_differs_from_wire_bytes
description: >
  A device whose row of the traffic matrix of one execution does not add up to the bytes that it sends, in a collective
  whose ranks are all in the capture.
columns:
  run_id: The run.
  instruction_id: The instruction.
  device_id: The sender.
  wire_bytes: Bytes that the device sends in one execution.
  traffic_bytes: Sum of its row of the matrix.
---*/
WITH sent AS (
  SELECT
    t.run_id AS run_id,
    t.instruction_id AS instruction_id,
    t.source_device_id AS device_id,
    CAST(SUM(t.bytes) AS BIGINT) AS traffic_bytes
  FROM main.traffic AS t
  GROUP BY t.run_id, t.instruction_id, t.source_device_id
),

senders AS (
  SELECT
    c.run_id AS run_id,
    c.instruction_id AS instruction_id,
    c.device_id AS device_id,
    MIN(c.wire_bytes) AS least_bytes,
    MAX(c.wire_bytes) AS most_bytes
  FROM main.collectives AS c
  WHERE NOT c.is_partial AND c.wire_bytes IS NOT NULL
  GROUP BY c.run_id, c.instruction_id, c.device_id
)

SELECT
  s.run_id AS run_id,
  s.instruction_id AS instruction_id,
  s.device_id AS device_id,
  s.most_bytes AS wire_bytes,
  COALESCE(t.traffic_bytes, 0) AS traffic_bytes
FROM senders AS s
LEFT JOIN sent AS t
  ON s.run_id = t.run_id AND s.instruction_id = t.instruction_id AND s.device_id = t.device_id
WHERE s.least_bytes <> COALESCE(t.traffic_bytes, 0) OR s.most_bytes <> COALESCE(t.traffic_bytes, 0)
