/*---
description: >
  Ops of a TPU core's op line that run at the same time, neither inside the other. The line is serial, so sums of their
  times would count a moment twice.
---*/
WITH overlapping AS (
  SELECT run_id, device_id, f.plane, COALESCE(f.parent_event_id, -1) AS parent_event_id
  FROM main.ops AS f
  INNER JOIN main.devices AS d USING (run_id, device_id)
  WHERE d.backend = 'tpu' AND f.line = 'XLA Ops' AND f.is_overlapping
  GROUP BY run_id, device_id, f.plane, COALESCE(f.parent_event_id, -1)
),

siblings AS (
  SELECT
    o.run_id, o.device_id, o.event_id, o.start_ps,
    MAX(o.start_ps + o.duration_ps) OVER (
      PARTITION BY o.run_id, o.device_id, o.plane, o.parent_event_id ORDER BY o.start_ps, o.duration_ps, o.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS previous_end_ps
  FROM main.ops AS o
  INNER JOIN overlapping AS w
    ON
      o.run_id = w.run_id AND o.device_id = w.device_id AND o.plane = w.plane
      AND COALESCE(o.parent_event_id, -1) = w.parent_event_id
  WHERE o.line = 'XLA Ops'
)

SELECT
  run_id, device_id,
  event_id, -- The op that starts too early.
  start_ps,
  previous_end_ps -- Latest end of the ops before it on the line, at the same level of nesting.
FROM siblings
WHERE start_ps < previous_end_ps
