/*---
audit: op_line_overlap
description: >
  Ops of a TPU core's op line that run at the same time without one holding the other: the line is serial, so sums of
  their times would count a moment twice.
columns:
  run_id: The run.
  device_id: The device.
  event_id: The op that starts too early.
  start_ps: Its start.
  previous_end_ps: Latest end of the ops before it on the line, at the same level of nesting.
---*/
WITH siblings AS (
  SELECT
    o.run_id AS run_id,
    o.device_id AS device_id,
    o.event_id AS event_id,
    o.start_ps AS start_ps,
    MAX(o.start_ps + o.duration_ps) OVER (
      PARTITION BY o.run_id, o.device_id, o.plane, o.parent_event_id ORDER BY o.start_ps, o.duration_ps, o.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS previous_end_ps
  FROM main.ops AS o
  INNER JOIN main.devices AS d ON o.run_id = d.run_id AND o.device_id = d.device_id
  WHERE d.backend = 'tpu' AND o.line = 'XLA Ops'
)

SELECT
  s.run_id AS run_id,
  s.device_id AS device_id,
  s.event_id AS event_id,
  s.start_ps AS start_ps,
  s.previous_end_ps AS previous_end_ps
FROM siblings AS s
WHERE s.start_ps < s.previous_end_ps
