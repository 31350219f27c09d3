/*---
model: ccl_events
inline: true
description: >
  Device events as a Chrome export holds them and CCL-Bench reads them, for the ccl_* metrics alone: every line of a TPU's
  plane but the asynchronous one, which the exporters drop; programs, steps and containers are counted beside the ops in
  them.
columns:
  run_id: The run.
  event_id: The event.
  device_id: The device, one process of the export.
  name: Name of the event.
  category: The profiler's hlo_category.
  kind: Kind of collective that the name or the category contains; NULL for none.
  start_ps: Start since the run's profile start.
  duration_ps: The device's own duration, or that of the event.
  bytes_accessed: Memory traffic that the profiler states.
  model_flops: Operations that the profiler states.
---*/
SELECT
  o.run_id AS run_id,
  o.event_id AS event_id,
  o.device_id AS device_id,
  i.name AS name,
  i.category AS category,
  i.collective AS kind,
  o.start_ps AS start_ps,
  COALESCE(o.device_duration_ps, o.duration_ps) AS duration_ps,
  i.bytes_accessed AS bytes_accessed,
  i.model_flops AS model_flops
FROM main.ops AS o
INNER JOIN main.instructions AS i ON o.run_id = i.run_id AND o.instruction_id = i.instruction_id
INNER JOIN main.devices AS d ON o.run_id = d.run_id AND o.device_id = d.device_id
WHERE d.backend = 'tpu' AND o.line <> 'Async XLA Ops'
