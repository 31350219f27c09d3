/*---
status: stable
unit: bytes
polarity: none
grain: [run_id, phase, axis]
value: message_bytes_per_device
needs: [message_bytes]
description: >
  Traffic of each kind of parallelism, and how certain the kind is. The traffic is the message bytes per device of all
  collectives along one axis of the mesh, or along several at once, as a mean over the devices that take part.
notes: >
  Source, confidence and evidence of the axis come from main.mesh_axes. If a collective runs along several inferred
  axes, confidence and evidence are those of the least certain axis, because the combination cannot be more certain.
---*/
WITH carried AS (
  SELECT
    run_id, phase, axis, device_id,
    SUM(executions) AS executions,
    SUM(message_bytes) AS message_bytes,
    CASE WHEN COUNT(wire_bytes) = COUNT(*) THEN SUM(wire_bytes) END AS wire_bytes
  FROM models.collective_work
  GROUP BY run_id, phase, axis, device_id
),

summed AS (
  SELECT
    run_id, phase, axis,
    COUNT(*) AS devices,
    SUM(executions) AS executions,
    SUM(message_bytes) AS message_bytes,
    CASE WHEN COUNT(wire_bytes) = COUNT(*) THEN SUM(wire_bytes) END AS wire_bytes
  FROM carried
  GROUP BY run_id, phase, axis
),

shared AS (
  SELECT
    *,
    SUM(message_bytes) OVER (PARTITION BY run_id, phase) AS phase_bytes
  FROM summed
),

named AS (
  SELECT run_id, axis
  FROM summed
  GROUP BY run_id, axis
),

ranked AS (
  SELECT run_id, a.axis, m.source, m.confidence, m.evidence
  FROM named AS a
  INNER JOIN main.mesh_axes AS m USING (run_id)
  WHERE
    (m.axis = 'pp' AND a.axis LIKE '%pp%') OR (m.axis = 'dp' AND a.axis LIKE '%dp%')
    OR (m.axis = 'ep' AND a.axis LIKE '%ep%') OR (m.axis = 'tp' AND a.axis LIKE '%tp%')
    OR (m.axis = 'sp' AND a.axis LIKE '%sp%')
  QUALIFY ROW_NUMBER() OVER (PARTITION BY a.run_id, a.axis ORDER BY m.confidence, m."position") = 1
)

SELECT
  run_id, t.phase,
  axis, -- Mesh axes of the groups, such as tp or dp+tp; 'unknown' if no mesh fits, 'none' for groups of one device.
  t.message_bytes / t.devices AS message_bytes_per_device, -- Message bytes, mean over devices, as in traffic_volume.
  t.message_bytes / NULLIF(t.phase_bytes, 0) AS share, -- Share of the message bytes of the phase.
  -- Bytes sent, mean over devices; NULL unless known for all executions.
  t.wire_bytes / t.devices AS wire_bytes_per_device,
  CAST(t.executions AS BIGINT) AS executions,
  t.devices,
  r.source AS axis_source, -- mesh, or inferred; NULL for 'unknown' and 'none'.
  r.confidence, -- Probability that the name of the axis is right; 1 for a mesh, NULL for 'unknown' and 'none'.
  r.evidence -- Reasons for an inferred name; NULL for a mesh, 'unknown' and 'none'.
FROM shared AS t
LEFT JOIN ranked AS r USING (run_id, axis)
WHERE t.message_bytes IS NOT NULL
