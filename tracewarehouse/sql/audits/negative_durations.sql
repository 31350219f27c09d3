/*---
description: An op that ends before it starts.
---*/
SELECT
  run_id,
  event_id, -- The op.
  line, -- Its line.
  duration_ps -- Its duration.
FROM main.ops
WHERE duration_ps < 0
