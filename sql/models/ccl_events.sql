/*---
model: ccl_events
inline: true
description: >
  Device events as a Chrome export holds them and CCL-Bench reads them, only for the ccl_* metrics: every line of a
  TPU's plane except the asynchronous one, which the exporters drop; programs, steps and containers count in addition
  to the ops in them.
---*/
SELECT
  run_id, -- The run.
  o.event_id, -- The event.
  device_id, -- The device, one process of the export.
  i.name, -- Name of the event.
  i.category, -- The profiler's hlo_category.
  i.collective AS kind, -- Kind of collective that the name or the category contains; NULL for none.
  o.start_ps, -- Start since the run's profile start.
  COALESCE(o.device_duration_ps, o.duration_ps) AS duration_ps, -- The device's own duration, or that of the event.
  i.bytes_accessed, -- Memory traffic that the profiler states.
  i.model_flops -- Operations that the profiler states.
FROM main.ops AS o
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
INNER JOIN main.devices AS d USING (run_id, device_id)
WHERE d.backend = 'tpu' AND o.line <> 'Async XLA Ops'
