/*---
model: exposed_phases
description: >
  Exposed communication of each phase on a device, with the span of the phase, in runs that communicate. Devices without
  communication have 0.
---*/
WITH exposed AS (
  SELECT run_id, phase, device_id, CAST(SUM(exposed_added_ps) AS BIGINT) AS exposed_communication_ps
  FROM main.collectives
  GROUP BY run_id, phase, device_id
),

communicating AS (
  SELECT run_id
  FROM exposed
  GROUP BY run_id
)

SELECT
  run_id, -- The run.
  d.device_id, -- The device.
  d.phase, -- Phase; NULL for steps without one, and in a capture without steps.
  d.span_ps, -- Time of the phase, as models.device_phases has it.
  -- Time in which the op line runs a collective, or the start or done of one.
  COALESCE(x.exposed_communication_ps, 0) AS exposed_communication_ps
FROM models.device_phases AS d
INNER JOIN communicating USING (run_id)
LEFT JOIN exposed AS x ON d.run_id = x.run_id AND d.device_id = x.device_id AND d.phase IS NOT DISTINCT FROM x.phase
