/*---
metric: copy_overhead
version: 1
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: overhead
ranges: {overhead: [0, 1]}
needs: [copies]
description: >
  Share of a phase in which a device copies and neither computes nor communicates: time in the windows of copies that no
  other op covers, over the time of the phase's steps, all devices together. The window of an asynchronous copy lasts
  from its start half to the end of its done half. Each moment counts once, for the step in which the first window that
  covers it begins. In a capture without steps, the time is from a device's first op to the end of its last, and phase
  is NULL.
changed: First version.
ccl_bench: memory_transfer_overhead
---*/
WITH exposed AS (
  SELECT
    run_id,
    device_id,
    phase,
    step IS NOT NULL AS is_in_step,
    SUM(exposed_added_ps) AS exposed_copy_ps
  FROM models.copy_windows
  GROUP BY run_id, device_id, phase, step IS NOT NULL
),

copying AS (
  SELECT run_id
  FROM exposed
  GROUP BY run_id
)

SELECT
  run_id, -- The run.
  d.phase, -- Phase; NULL for steps without one, and in a capture without steps.
  SUM(COALESCE(t.exposed_copy_ps, 0)) / SUM(d.span_ps) AS overhead, -- Exposed copy time over the time of the phase.
  SUM(COALESCE(t.exposed_copy_ps, 0)) / 1e9 AS exposed_ms, -- Exposed copy time of all devices.
  SUM(d.span_ps) / 1e9 AS time_ms, -- Time of the phase of all devices.
  COUNT(*) AS devices -- Devices that ran the phase.
FROM models.device_phases AS d
INNER JOIN copying USING (run_id)
LEFT JOIN exposed AS t
  ON
    d.run_id = t.run_id AND d.device_id = t.device_id AND t.is_in_step = (d.steps IS NOT NULL)
    AND d.phase IS NOT DISTINCT FROM t.phase
GROUP BY run_id, d.phase
HAVING SUM(d.span_ps) > 0
