/*---
model: traffic_intervals
inline: true
description: >
  Time on a device from the end of collectives to the start of the next one, within a phase; one row per collective
  that has another before it. If it starts while another is still running, there is no gap, and the interval is 0.
---*/
SELECT
  run_id, -- The run.
  device_id, -- The device.
  phase, -- Phase of both; NULL outside of phases.
  event_id, -- The collective that starts.
  -- Mesh axes of the collective before it, the one that ends last of those that started earlier.
  previous_axis AS axis_from,
  axis AS axis_to, -- Mesh axes of the collective that starts.
  -- The two are of different steps, or one of them is of none.
  COALESCE(step <> previous_step, COALESCE(step, previous_step) IS NOT NULL) AS crosses_step,
  GREATEST(start_ps - previous_end_ps, 0) AS interval_ps, -- Time between them.
  start_ps < previous_end_ps AS is_overlapping -- It starts while another is under way.
FROM main.collectives
WHERE previous_end_ps IS NOT NULL AND phase IS NOT DISTINCT FROM previous_phase
