/*---
metric: traffic_volume
version: 1
status: stable
unit: bytes
polarity: lower_is_better
grain: [run_id, phase, kind, axis]
value: message_bytes_per_device
needs: [message_bytes]
description: >
  Message bytes of a phase per device, as the mean over the devices that take part: operand bytes, or the full buffer
  for an all-gather. Bytes on the wire are those that a device sends under the algorithm of main.traffic. In a ring of n
  devices they are 2 (n-1)/n of an all-reduce's message and (n-1)/n of an all-gather's or reduce-scatter's; (n-1)/n for
  an all-to-all, and the whole message for the source of a collective-permute.
changed: First version.
ccl_bench: collective_vol
---*/
SELECT
  run_id, -- The run.
  phase, -- Phase; NULL in a step without one, outside before the first and after the last.
  kind, -- Kind of collective.
  axis, -- Mesh axes of its groups.
  SUM(message_bytes) / COUNT(*) AS message_bytes_per_device, -- Message bytes, mean over devices.
  SUM(message_bytes) / SUM(steps) AS message_bytes_per_step, -- Message bytes per step, mean over devices.
  -- Bytes sent, mean over devices; NULL if unknown, as in groups that are partly captured.
  CASE WHEN COUNT(wire_bytes) = COUNT(*) THEN SUM(wire_bytes) / COUNT(*) END AS wire_bytes_per_device,
  CAST(SUM(message_bytes) AS BIGINT) AS message_bytes, -- Message bytes of all devices.
  COUNT(*) AS devices, -- Devices that take part.
  -- Executions whose message size is unknown; they are not counted here.
  CAST(SUM(executions - sized_executions) AS BIGINT) AS unsized_executions
FROM models.collective_work
GROUP BY run_id, phase, kind, axis
HAVING SUM(sized_executions) > 0
