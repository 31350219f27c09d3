/*---
metric: traffic_volume_total
version: 1
status: experimental
unit: bytes
polarity: lower_is_better
grain: [run_id]
value: message_bytes_per_device
needs: [message_bytes]
description: >
  Message bytes of all collectives of a run, per device that takes part in any of them. The values of traffic_volume
  cannot be added up over phases, kinds and axes, because each divides by its own number of devices.
changed: First version.
---*/
WITH worked AS (
  SELECT
    run_id,
    device_id,
    SUM(message_bytes) AS message_bytes,
    CASE WHEN COUNT(wire_bytes) = COUNT(*) THEN SUM(wire_bytes) END AS wire_bytes,
    SUM(executions - sized_executions) AS unsized_executions,
    SUM(sized_executions) AS sized_executions
  FROM models.collective_work
  GROUP BY run_id, device_id
)

SELECT
  run_id, -- The run.
  SUM(message_bytes) / COUNT(*) AS message_bytes_per_device, -- Message bytes, mean over devices.
  -- Bytes sent, mean over devices; NULL where not known of all executions.
  CASE WHEN COUNT(wire_bytes) = COUNT(*) THEN SUM(wire_bytes) / COUNT(*) END AS wire_bytes_per_device,
  CAST(SUM(message_bytes) AS BIGINT) AS message_bytes, -- Message bytes of all devices.
  COUNT(*) AS devices, -- Devices that take part.
  -- Executions whose message size is not known and that are missing here.
  CAST(SUM(unsized_executions) AS BIGINT) AS unsized_executions
FROM worked
GROUP BY run_id
HAVING SUM(sized_executions) > 0
