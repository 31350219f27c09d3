/*---
metric: traffic_volume
version: 1
status: stable
unit: bytes
polarity: lower_is_better
grain: [run_id, phase, kind, axis]
value: message_bytes_per_device
requires: SELECT c.run_id FROM main.collectives AS c WHERE c.message_bytes IS NOT NULL
description: >
  Message bytes of a phase per device, the mean over the devices that take part: operand bytes, for an all-gather the
  full buffer. Bytes on the wire are those a device sends under the algorithm of main.traffic: in a ring of n devices
  2 (n-1)/n of an all-reduce's message, (n-1)/n of an all-gather's or a reduce-scatter's; (n-1)/n for an all-to-all, the
  whole message for a collective-permute's source.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  kind: Kind of collective.
  axis: Mesh axes of its groups.
  message_bytes_per_device: Message bytes, mean over devices.
  message_bytes_per_step: The same per step.
  wire_bytes_per_device: Bytes sent, mean over devices; NULL where not known, as in groups that are partly captured.
  message_bytes: Message bytes of all devices.
  devices: Devices that take part.
  unsized_executions: Executions whose message size is not known and that are missing here.
changed: First version.
ccl_bench: collective_vol
---*/
SELECT
  w.run_id AS run_id,
  w.phase AS phase,
  w.kind AS kind,
  w.axis AS axis,
  CAST(SUM(w.message_bytes) AS DOUBLE) / CAST(COUNT(*) AS DOUBLE) AS message_bytes_per_device,
  CAST(SUM(w.message_bytes) AS DOUBLE) / CAST(SUM(w.steps) AS DOUBLE) AS message_bytes_per_step,
  CASE
    WHEN COUNT(w.wire_bytes) = COUNT(*) THEN CAST(SUM(w.wire_bytes) AS DOUBLE) / CAST(COUNT(*) AS DOUBLE)
    ELSE NULL
  END AS wire_bytes_per_device,
  CAST(SUM(w.message_bytes) AS BIGINT) AS message_bytes,
  COUNT(*) AS devices,
  CAST(SUM(w.executions - w.sized_executions) AS BIGINT) AS unsized_executions
FROM models.collective_work AS w
GROUP BY w.run_id, w.phase, w.kind, w.axis
HAVING SUM(w.sized_executions) > 0
