/*---
model: traffic_intervals
description: >
  Time on a device from the end of collectives to the start of the next one, within a phase; one row per collective that
  has another before it. Where it starts while another is still under way there is no gap, and the interval is 0.
columns:
  run_id: The run.
  device_id: The device.
  phase: Phase of both; NULL outside of phases.
  event_id: The collective that starts.
  axis_from: Mesh axes of the collective before it, the one that ends last of those that started earlier.
  axis_to: Mesh axes of the collective that starts.
  interval_ps: Time between them.
  is_overlapping: It starts while another is under way.
---*/
WITH followed AS (
  SELECT
    c.run_id AS run_id,
    c.device_id AS device_id,
    c.phase AS phase,
    c.event_id AS event_id,
    c.axis AS axis,
    c.start_ps AS start_ps,
    c.end_ps AS end_ps,
    ROW_NUMBER() OVER (PARTITION BY c.run_id, c.device_id ORDER BY c.start_ps, c.event_id) AS place,
    LAG(c.end_ps) OVER (PARTITION BY c.run_id, c.device_id ORDER BY c.start_ps, c.event_id) AS previous_end_ps,
    LAG(c.axis) OVER (PARTITION BY c.run_id, c.device_id ORDER BY c.start_ps, c.event_id) AS previous_axis,
    LAG(c.phase) OVER (PARTITION BY c.run_id, c.device_id ORDER BY c.start_ps, c.event_id) AS previous_phase,
    MAX(c.end_ps) OVER (
      PARTITION BY c.run_id, c.device_id ORDER BY c.start_ps, c.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS last_end_ps
  FROM main.collectives AS c
),

-- where one outlasts several behind it, the first of these has it right before it, and the others look it up there
outlasted AS (
  SELECT
    o.run_id AS run_id,
    o.device_id AS device_id,
    o.phase AS phase,
    o.event_id AS event_id,
    o.axis AS axis,
    o.start_ps AS start_ps,
    o.previous_end_ps AS previous_end_ps,
    o.last_end_ps AS last_end_ps,
    MAX(CASE WHEN o.previous_end_ps = o.last_end_ps THEN o.place ELSE NULL END) OVER (
      PARTITION BY o.run_id, o.device_id ORDER BY o.place
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS first_place
  FROM followed AS o
  WHERE o.end_ps < o.last_end_ps OR o.previous_end_ps < o.last_end_ps
),

pairs AS (
  SELECT
    f.run_id AS run_id,
    f.device_id AS device_id,
    f.phase AS phase,
    f.event_id AS event_id,
    f.axis AS axis,
    f.start_ps AS start_ps,
    f.last_end_ps AS last_end_ps,
    f.previous_axis AS last_axis,
    f.previous_phase AS last_phase
  FROM followed AS f
  WHERE f.previous_end_ps = f.last_end_ps
  UNION ALL
  SELECT
    e.run_id AS run_id,
    e.device_id AS device_id,
    e.phase AS phase,
    e.event_id AS event_id,
    e.axis AS axis,
    e.start_ps AS start_ps,
    e.last_end_ps AS last_end_ps,
    n.previous_axis AS last_axis,
    n.previous_phase AS last_phase
  FROM outlasted AS e
  INNER JOIN followed AS n ON e.run_id = n.run_id AND e.device_id = n.device_id AND e.first_place = n.place
  WHERE e.previous_end_ps < e.last_end_ps
)

SELECT
  p.run_id AS run_id,
  p.device_id AS device_id,
  p.phase AS phase,
  p.event_id AS event_id,
  p.last_axis AS axis_from,
  p.axis AS axis_to,
  GREATEST(p.start_ps - p.last_end_ps, 0) AS interval_ps,
  p.start_ps < p.last_end_ps AS is_overlapping
FROM pairs AS p
WHERE COALESCE(p.phase, '') = COALESCE(p.last_phase, '')
