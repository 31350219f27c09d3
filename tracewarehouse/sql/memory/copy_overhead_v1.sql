/*---
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: overhead
ranges: {overhead: [0, 1]}
needs: [any_copy]
description: >
  Share of a phase in which a device copies and neither computes nor communicates. It is the part of the copies' windows
  that no other op covers, over the time of the phase's steps, all devices together.
notes: >
  The window of an asynchronous copy lasts from the start of its start half to the end of its done half. Each moment
  counts once, for the step in which the first window that covers it begins. The last step counts only in a phase that
  has no other (models.timed_spans).
ccl_bench: memory_transfer_overhead
---*/
WITH exposed AS (
  SELECT c.run_id, c.device_id, c.phase, SUM(c.exposed_added_ps) AS exposed_copy_ps
  FROM models.copy_windows AS c
  INNER JOIN models.timed_spans AS s
    ON
      c.run_id = s.run_id AND c.device_id = s.device_id AND c.phase IS NOT DISTINCT FROM s.phase
      AND c.step IS NOT DISTINCT FROM s.step
  GROUP BY c.run_id, c.device_id, c.phase
),

copying AS (
  SELECT run_id
  FROM models.copy_windows
  GROUP BY run_id
)

SELECT
  run_id, t.phase,
  SUM(COALESCE(x.exposed_copy_ps, 0)) / SUM(t.span_ps) AS overhead, -- Exposed copy time over the time of the phase.
  CASE WHEN COUNT(*) FILTER (WHERE t.is_last) > 0 THEN 'upper' END AS bound,
  SUM(COALESCE(x.exposed_copy_ps, 0)) / 1e9 AS exposed_ms, -- Exposed copy time of all devices.
  SUM(t.span_ps) / 1e9 AS time_ms, -- Time of the phase, of all devices together.
  COUNT(*) AS devices -- Devices that ran the phase.
FROM models.timed_phases AS t
INNER JOIN copying USING (run_id)
LEFT JOIN exposed AS x ON t.run_id = x.run_id AND t.device_id = x.device_id AND t.phase IS NOT DISTINCT FROM x.phase
GROUP BY run_id, t.phase
