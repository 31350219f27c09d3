/*---
status: stable
unit: 1/ms
polarity: none
grain: [run_id, phase, axis]
value: executions_per_ms
needs: [timed, collectives_in_steps]
description: >
  Executions of collectives on a device per millisecond of the phase, over all kinds of an axis and the devices that
  take part. The time of a phase is the time of its steps, including the gaps between them. The last step counts only
  in a phase that has no other (models.timed_spans).
---*/
WITH executed AS (
  SELECT run_id, device_id, phase, axis, COUNT(*) AS executions
  FROM models.timed_collectives
  GROUP BY run_id, device_id, phase, axis
)

SELECT
  e.run_id, e.phase, e.axis,
  -- Executions of all devices over the time of all devices.
  SUM(e.executions) * 1000000000 / SUM(t.span_ps) AS executions_per_ms,
  CASE WHEN COUNT(*) FILTER (WHERE t.is_last) > 0 THEN 'upper' END AS bound,
  CAST(SUM(e.executions) AS BIGINT) AS executions,
  SUM(t.span_ps) / 1e9 AS time_ms, -- Time of the phase, of all devices together.
  COUNT(*) AS devices
FROM executed AS e
INNER JOIN models.timed_phases AS t
  ON e.run_id = t.run_id AND e.device_id = t.device_id AND e.phase IS NOT DISTINCT FROM t.phase
GROUP BY e.run_id, e.phase, e.axis
