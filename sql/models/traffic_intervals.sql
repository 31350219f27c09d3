/*---
model: traffic_intervals
description: >
  Time on a device from the end of collectives to the start of the next one, within a phase; one row per collective
  that has another before it. If it starts while another is still running, there is no gap, and the interval is 0.
---*/
WITH followed AS (
  SELECT
    run_id,
    device_id,
    phase,
    step,
    event_id,
    axis,
    start_ps,
    end_ps,
    ROW_NUMBER() OVER (PARTITION BY run_id, device_id ORDER BY start_ps, event_id) AS place,
    LAG(end_ps) OVER (PARTITION BY run_id, device_id ORDER BY start_ps, event_id) AS previous_end_ps,
    LAG(axis) OVER (PARTITION BY run_id, device_id ORDER BY start_ps, event_id) AS previous_axis,
    LAG(phase) OVER (PARTITION BY run_id, device_id ORDER BY start_ps, event_id) AS previous_phase,
    LAG(step) OVER (PARTITION BY run_id, device_id ORDER BY start_ps, event_id) AS previous_step,
    MAX(end_ps) OVER (
      PARTITION BY run_id, device_id ORDER BY start_ps, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS last_end_ps
  FROM main.collectives
),

-- where one outlasts several behind it, the first of these has it right before it, and the others look it up there
outlasted AS (
  SELECT
    run_id,
    device_id,
    phase,
    step,
    event_id,
    axis,
    start_ps,
    previous_end_ps,
    last_end_ps,
    MAX(CASE WHEN previous_end_ps = last_end_ps THEN place END) OVER (
      PARTITION BY run_id, device_id ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS first_place
  FROM followed
  WHERE end_ps < last_end_ps OR previous_end_ps < last_end_ps
),

pairs AS (
  SELECT
    run_id,
    device_id,
    phase,
    step,
    event_id,
    axis,
    start_ps,
    last_end_ps,
    previous_axis AS last_axis,
    previous_phase AS last_phase,
    previous_step AS last_step
  FROM followed
  WHERE previous_end_ps = last_end_ps
  UNION ALL
  SELECT
    e.run_id,
    e.device_id,
    e.phase,
    e.step,
    e.event_id,
    e.axis,
    e.start_ps,
    e.last_end_ps,
    n.previous_axis AS last_axis,
    n.previous_phase AS last_phase,
    n.previous_step AS last_step
  FROM outlasted AS e
  INNER JOIN followed AS n ON e.run_id = n.run_id AND e.device_id = n.device_id AND e.first_place = n.place
  WHERE e.previous_end_ps < e.last_end_ps
)

SELECT
  run_id, -- The run.
  device_id, -- The device.
  phase, -- Phase of both; NULL outside of phases.
  event_id, -- The collective that starts.
  -- Mesh axes of the collective before it, the one that ends last of those that started earlier.
  last_axis AS axis_from,
  axis AS axis_to, -- Mesh axes of the collective that starts.
  -- The two are of different steps, or one of them is of none.
  COALESCE(step <> last_step, COALESCE(step, last_step) IS NOT NULL) AS crosses_step,
  GREATEST(start_ps - last_end_ps, 0) AS interval_ps, -- Time between them.
  start_ps < last_end_ps AS is_overlapping -- It starts while another is under way.
FROM pairs
WHERE phase IS NOT DISTINCT FROM last_phase
