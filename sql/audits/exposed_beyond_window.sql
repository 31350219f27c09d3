/*---
audit: exposed_beyond_window
description: A collective whose exposed time is negative or above its window.
columns:
  run_id: The run.
  event_id: The collective.
  exposed_ps: Exposed time.
  window_ps: Length of the window.
---*/
SELECT
  c.run_id AS run_id,
  c.event_id AS event_id,
  c.exposed_ps AS exposed_ps,
  c.end_ps - c.start_ps AS window_ps
FROM main.collectives AS c
WHERE c.exposed_ps < 0 OR c.exposed_ps > c.end_ps - c.start_ps
