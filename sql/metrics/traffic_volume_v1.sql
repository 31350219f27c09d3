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
  Message bytes of a phase per device, the mean over the devices that take part: operand bytes, for an all-gather the
  full buffer. Bytes on the wire are those a device sends under the algorithm of main.traffic: in a ring of n devices
  2 (n-1)/n of an all-reduce's message, (n-1)/n of an all-gather's or a reduce-scatter's; (n-1)/n for an all-to-all, the
  whole message for a collective-permute's source.
changed: First version.
ccl_bench: collective_vol
---*/
SELECT
  run_id, -- The run.
  phase, -- Phase; NULL outside of phases.
  kind, -- Kind of collective.
  axis, -- Mesh axes of its groups.
  SUM(message_bytes) / COUNT(*) AS message_bytes_per_device, -- Message bytes, mean over devices.
  SUM(message_bytes) / SUM(steps) AS message_bytes_per_step, -- The same per step.
  -- Bytes sent, mean over devices; NULL where not known, as in groups that are partly captured.
  CASE WHEN COUNT(wire_bytes) = COUNT(*) THEN SUM(wire_bytes) / COUNT(*) END AS wire_bytes_per_device,
  CAST(SUM(message_bytes) AS BIGINT) AS message_bytes, -- Message bytes of all devices.
  COUNT(*) AS devices, -- Devices that take part.
  -- Executions whose message size is not known and that are missing here.
  CAST(SUM(executions - sized_executions) AS BIGINT) AS unsized_executions
FROM models.collective_work
GROUP BY run_id, phase, kind, axis
HAVING SUM(sized_executions) > 0
