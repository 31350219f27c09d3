/*---
description: A collective whose window ends before it starts.
---*/
SELECT
  run_id,
  event_id, -- The collective.
  window_source, -- How the window was found.
  start_ps, end_ps
FROM main.collectives
WHERE end_ps < start_ps
