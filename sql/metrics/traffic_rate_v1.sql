/*---
metric: traffic_rate
version: 1
status: experimental
unit: bytes/ms
polarity: none
grain: [run_id, phase, kind, axis]
value: message_bytes_per_ms
needs: [recorded, collectives_in_steps, message_bytes]
description: >
  Message bytes of collectives on a device per millisecond of the phase, over the devices that take part. The time of a
  phase is the time of its steps, including the gaps between them; in a capture without steps it is the time from a
  device's first op to the end of its last, and phase is NULL. Message and sent bytes are those of traffic_volume.
changed: First version.
---*/
SELECT
  w.run_id, -- The run.
  w.phase, -- Phase; NULL for the steps of none, and in a capture without steps.
  w.kind, -- Kind of collective.
  w.axis, -- Mesh axes of its groups.
  SUM(w.message_bytes) * 1000000000 / SUM(d.span_ps) AS message_bytes_per_ms, -- Of all devices over the time of all.
  -- Bytes sent, in the same way; NULL where not known of all executions.
  CASE
    WHEN COUNT(w.wire_bytes) = COUNT(*) THEN SUM(w.wire_bytes) * 1000000000 / SUM(d.span_ps)
  END AS wire_bytes_per_ms,
  CAST(SUM(w.message_bytes) AS BIGINT) AS message_bytes, -- Message bytes of all devices.
  SUM(d.span_ps) / 1e9 AS time_ms, -- Time of the phase, of all devices together.
  COUNT(*) AS devices -- Devices that take part.
FROM models.collective_work AS w
INNER JOIN models.device_phases AS d
  ON w.run_id = d.run_id AND w.device_id = d.device_id AND w.phase IS NOT DISTINCT FROM d.phase
WHERE d.span_ps > 0
GROUP BY w.run_id, w.phase, w.kind, w.axis
HAVING SUM(w.sized_executions) > 0
