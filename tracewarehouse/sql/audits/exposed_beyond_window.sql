/*---
description: A collective whose exposed time is negative or longer than its window.
---*/
SELECT
  run_id,
  event_id, -- The collective.
  exposed_ps, -- Exposed time.
  end_ps - start_ps AS window_ps -- Length of the window.
FROM main.collectives
WHERE exposed_ps < 0 OR exposed_ps > end_ps - start_ps
