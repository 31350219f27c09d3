/*---
description: >
  The windows of the collectives on each device, in runs that have times, with the part of each that no earlier window of
  the same step covers. The sum of these parts is the length of the windows' union.
---*/
WITH windows AS (
  SELECT
    run_id, event_id, device_id, phase, step, kind, axis, start_ps, end_ps,
    MAX(end_ps) OVER (
      PARTITION BY run_id, device_id, phase, step ORDER BY start_ps, event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS covered_until_ps
  FROM main.collectives
  WHERE start_ps IS NOT NULL
)

SELECT
  run_id,
  event_id, -- The collective's event.
  device_id, phase, step, kind, axis,
  start_ps, -- Start of the window.
  end_ps, -- End of the window, exclusive.
  -- Time of the window that no window before it in the same step covers.
  GREATEST(end_ps - GREATEST(start_ps, COALESCE(covered_until_ps, start_ps)), 0) AS new_ps
FROM windows
