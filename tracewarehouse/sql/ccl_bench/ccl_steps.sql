/*---
description: >
  The host events that CCL-Bench takes for steps, only for the ccl_* metrics: those named exactly $core.py:331 step, a
  line number of one version of vLLM.
---*/
SELECT
  run_id, event_id, duration_ps,
  ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY start_ps, event_id) AS place, -- Position in time, from 1.
  ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY event_id) AS file_place, -- Position in the file, from 1.
  COUNT(*) OVER (PARTITION BY run_id) AS places -- Number of such events in the run.
FROM main.host_events
WHERE name = '$core.py:331 step'
