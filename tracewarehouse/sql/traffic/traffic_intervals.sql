/*---
inline: true
description: >
  Time on a device from the end of the previous collective of a phase to the start of the next. Each collective but the
  first has a row. If the previous one still runs, the interval is 0.
---*/
SELECT
  run_id, device_id,
  phase, -- Phase of both; NULL in a step without one, outside before the first and after the last.
  event_id, -- The collective that starts.
  -- Mesh axes of the previous collective: of those that started earlier, the one that ends last.
  previous_axis AS axis_from,
  axis AS axis_to,
  -- The two belong to different steps, or one of them to none.
  COALESCE(step <> previous_step, COALESCE(step, previous_step) IS NOT NULL) AS crosses_step,
  GREATEST(start_ps - previous_end_ps, 0) AS interval_ps, -- Time between them.
  start_ps < previous_end_ps AS is_overlapping -- The collective starts while another is under way.
FROM main.collectives
WHERE previous_end_ps IS NOT NULL AND phase IS NOT DISTINCT FROM previous_phase
