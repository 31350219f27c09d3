/*---
status: stable
unit: bytes
polarity: lower_is_better
grain: [run_id, phase, kind, axis]
value: message_bytes_per_device
needs: [message_bytes]
description: >
  Message bytes of a phase per device, as the mean over the devices that take part: operand bytes, or the full buffer
  for an all-gather. Bytes on the wire are those that a device sends under the algorithm of main.traffic.
notes: >
  In a ring of n devices the bytes on the wire are 2 (n-1)/n of an all-reduce's message and (n-1)/n of an all-gather's
  or reduce-scatter's. They are (n-1)/n of an all-to-all's message, and the whole message for the source of a
  collective-permute.
ccl_bench: collective_vol
---*/
WITH ran AS (
  SELECT run_id, COUNT(DISTINCT device_id) AS devices
  FROM models.collective_work
  GROUP BY run_id
)

SELECT
  run_id, w.phase, w.kind, w.axis,
  SUM(w.message_bytes) / COUNT(*) AS message_bytes_per_device, -- Message bytes, mean over devices.
  SUM(w.message_bytes) / SUM(w.steps) AS message_bytes_per_step, -- Message bytes per step, mean over devices.
  -- Bytes sent, mean over devices; NULL if unknown, as in groups that are partly captured.
  CASE WHEN COUNT(w.wire_bytes) = COUNT(*) THEN SUM(w.wire_bytes) / COUNT(*) END AS wire_bytes_per_device,
  CAST(SUM(w.message_bytes) AS BIGINT) AS message_bytes, -- Message bytes of all devices.
  COUNT(*) AS devices,
  -- Devices that take part in any collective of the run. The message bytes of all rows over this number are the run's
  -- bytes per device.
  MIN(r.devices) AS run_devices,
  -- Executions whose message size is unknown; they are not counted here.
  CAST(SUM(w.executions - w.sized_executions) AS BIGINT) AS unsized_executions
FROM models.collective_work AS w
INNER JOIN ran AS r USING (run_id)
GROUP BY run_id, w.phase, w.kind, w.axis
HAVING SUM(w.sized_executions) > 0
