/*---
audit: negative_durations
description: An op that ends before it starts.
columns:
  run_id: The run.
  event_id: The op.
  line: Its line.
  duration_ps: Its duration.
---*/
SELECT
  o.run_id AS run_id,
  o.event_id AS event_id,
  o.line AS line,
  o.duration_ps AS duration_ps
FROM main.ops AS o
WHERE o.duration_ps < 0
