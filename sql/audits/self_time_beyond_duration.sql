/*---
audit: self_time_beyond_duration
description: An op whose self time is negative or above its duration.
columns:
  run_id: The run.
  event_id: The op.
  line: Its line.
  self_ps: Its self time.
  duration_ps: Its duration.
---*/
SELECT
  o.run_id AS run_id,
  o.event_id AS event_id,
  o.line AS line,
  o.self_ps AS self_ps,
  o.duration_ps AS duration_ps
FROM main.ops AS o
WHERE o.self_ps < 0 OR o.self_ps > o.duration_ps
