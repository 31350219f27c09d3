/*---
audit: collective_ends_before_start
description: A collective whose window ends before it starts.
columns:
  run_id: The run.
  event_id: The collective.
  window_source: How the window was found.
  start_ps: Its start.
  end_ps: Its end.
---*/
SELECT
  c.run_id AS run_id,
  c.event_id AS event_id,
  c.window_source AS window_source,
  c.start_ps AS start_ps,
  c.end_ps AS end_ps
FROM main.collectives AS c
WHERE c.end_ps < c.start_ps
