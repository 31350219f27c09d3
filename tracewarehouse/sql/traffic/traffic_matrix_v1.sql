/*---
status: stable
unit: bytes
polarity: none
grain: [run_id, phase, axis, kind, source_device_id, target_device_id]
value: sent_bytes
needs: [known_traffic]
description: >
  Bytes that one device sends to another over a phase by kind of collective, under the algorithm of main.traffic. Each
  execution on the sender counts.
notes: >
  In a ring a device sends to the next rank of the group, in an all-to-all an equal share to every other rank, in a
  collective-permute from source to target. Collectives whose groups are partly outside the capture are left out,
  because their devices are not known.
---*/
WITH executed AS (
  SELECT run_id, phase, axis, kind, instruction_id, device_id, COUNT(*) AS executions
  FROM main.collectives
  GROUP BY run_id, phase, axis, kind, instruction_id, device_id
)

SELECT
  e.run_id, e.phase, e.axis, e.kind,
  t.source_device_id, -- The sender.
  t.target_device_id, -- The receiver.
  CAST(SUM(e.executions * t.bytes) AS BIGINT) AS sent_bytes,
  CAST(SUM(e.executions) AS BIGINT) AS executions -- Executions of collectives with traffic between the two.
FROM executed AS e
INNER JOIN main.traffic AS t
  ON e.run_id = t.run_id AND e.instruction_id = t.instruction_id AND e.device_id = t.source_device_id
GROUP BY e.run_id, e.phase, e.axis, e.kind, t.source_device_id, t.target_device_id
