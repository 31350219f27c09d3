/*---
audit: collective_ends_before_start
description: A collective whose window ends before it starts.
---*/
SELECT
  run_id,
  event_id, -- The collective.
  window_source, -- How the window was found.
  start_ps, -- Its start.
  end_ps -- Its end.
FROM main.collectives
WHERE end_ps < start_ps
