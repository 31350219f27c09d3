/*---
parameters: [run, device, from_ps, until_ps]
reads_runs: [run]
description: The collectives of a device in a window of time, with a row per kind and mesh axis.
---*/
SELECT
  kind,
  axis, -- Mesh axis.
  COUNT(*) AS executions, -- Executions that overlap the window.
  SUM(message_bytes) AS message_bytes, -- Bytes of their messages.
  SUM(LEAST(end_ps, until_ps) - GREATEST(start_ps, from_ps)) / 1e6 AS time_us -- Their time in the window.
FROM main.collectives
WHERE run_id = run AND device_id = device AND start_ps < until_ps AND end_ps > from_ps
GROUP BY kind, axis
