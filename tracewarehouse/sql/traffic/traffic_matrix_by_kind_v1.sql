/*---
metric: traffic_matrix_by_kind
version: 1
status: experimental
unit: bytes
polarity: none
grain: [run_id, phase, axis, kind, source_device_id, target_device_id]
value: sent_bytes
needs: [traffic]
description: >
  Bytes that one device sends to another over a phase by kind of collective. The rows of all kinds add up to those of
  traffic_matrix, which tells how they are counted.
changed: First version.
---*/
WITH executed AS (
  SELECT run_id, phase, axis, kind, instruction_id, device_id, COUNT(*) AS executions
  FROM main.collectives
  GROUP BY run_id, phase, axis, kind, instruction_id, device_id
)

SELECT
  e.run_id, -- The run.
  e.phase, -- Phase; NULL in a step without one, outside before the first and after the last.
  e.axis, -- Mesh axes of the groups.
  e.kind, -- Kind of collective.
  t.source_device_id, -- The sender.
  t.target_device_id, -- The receiver.
  CAST(SUM(e.executions * t.bytes) AS BIGINT) AS sent_bytes, -- Bytes sent.
  CAST(SUM(e.executions) AS BIGINT) AS executions -- Executions of collectives with traffic between the two.
FROM executed AS e
INNER JOIN main.traffic AS t
  ON e.run_id = t.run_id AND e.instruction_id = t.instruction_id AND e.device_id = t.source_device_id
GROUP BY e.run_id, e.phase, e.axis, e.kind, t.source_device_id, t.target_device_id
