/*---
description: An op whose self time is negative or longer than its duration.
---*/
SELECT
  run_id,
  event_id, -- The op.
  line, -- Its line.
  self_ps, -- Its self time.
  duration_ps -- Its duration.
FROM main.ops
WHERE self_ps < 0 OR self_ps > duration_ps
