/*---
status: experimental
unit: bytes/ms
polarity: none
grain: [run_id, phase, kind, axis]
value: message_bytes_per_ms
needs: [timed, collectives_in_steps, message_bytes]
description: >
  Message bytes of collectives on a device per millisecond of the phase, over the devices that take part.
notes: >
  The time of a phase is the time of its steps, including the gaps between them. The last step counts only in a phase
  that has no other (models.timed_spans). Message and sent bytes are counted as in traffic_volume.
---*/
WITH moved AS (
  SELECT
    run_id, device_id, phase, kind, axis,
    COUNT(message_bytes) AS sized,
    SUM(message_bytes) AS message_bytes,
    CASE WHEN COUNT(wire_bytes) = COUNT(*) THEN SUM(wire_bytes) END AS wire_bytes
  FROM models.timed_collectives
  GROUP BY run_id, device_id, phase, kind, axis
)

SELECT
  m.run_id, m.phase, m.kind, m.axis,
  SUM(m.message_bytes) * 1e9 / SUM(t.span_ps) AS message_bytes_per_ms, -- Message bytes of all devices over their time.
  CASE WHEN COUNT(*) FILTER (WHERE t.is_last) > 0 THEN 'upper' END AS bound,
  -- Bytes sent, in the same way; NULL where not known of all executions.
  CASE
    WHEN COUNT(m.wire_bytes) = COUNT(*) THEN SUM(m.wire_bytes) * 1e9 / SUM(t.span_ps)
  END AS wire_bytes_per_ms,
  CAST(SUM(m.message_bytes) AS BIGINT) AS message_bytes, -- Message bytes of all devices.
  SUM(t.span_ps) / 1e9 AS time_ms, -- Time of the phase, of all devices together.
  COUNT(*) AS devices
FROM moved AS m
INNER JOIN models.timed_phases AS t
  ON m.run_id = t.run_id AND m.device_id = t.device_id AND m.phase IS NOT DISTINCT FROM t.phase
GROUP BY m.run_id, m.phase, m.kind, m.axis
HAVING SUM(m.sized) > 0
