/*---
description: >
  Executions and bytes of collectives on each device, per phase, kind and axis, with the number of steps that the device
  ran in the phase.
---*/
WITH counted AS (
  SELECT
    run_id, device_id, phase, kind, axis,
    COUNT(*) AS executions,
    COUNT(message_bytes) AS sized_executions,
    CAST(SUM(message_bytes) AS BIGINT) AS message_bytes,
    CASE WHEN COUNT(wire_bytes) = COUNT(*) THEN CAST(SUM(wire_bytes) AS BIGINT) END AS wire_bytes
  FROM main.collectives
  GROUP BY run_id, device_id, phase, kind, axis
)

SELECT
  n.run_id, n.device_id, n.phase, n.kind, n.axis,
  COALESCE(s.steps, 1) AS steps, -- Steps of the phase on the device; 1 if there are none.
  n.executions, -- Executions on the device.
  n.sized_executions, -- Executions whose message size is known.
  n.message_bytes, -- Message bytes of these; NULL if none is known.
  n.wire_bytes -- Bytes that the device sends; NULL unless known for all executions.
FROM counted AS n
LEFT JOIN models.phase_steps AS s
  ON n.run_id = s.run_id AND n.device_id = s.device_id AND n.phase IS NOT DISTINCT FROM s.phase
