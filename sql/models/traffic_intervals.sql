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
    LAG(c.end_ps) OVER (PARTITION BY c.run_id, c.device_id ORDER BY c.start_ps, c.event_id) AS previous_end_ps,
    LAG(c.axis) OVER (PARTITION BY c.run_id, c.device_id ORDER BY c.start_ps, c.event_id) AS previous_axis,
    LAG(c.phase) OVER (PARTITION BY c.run_id, c.device_id ORDER BY c.start_ps, c.event_id) AS previous_phase,
    MAX(c.end_ps) OVER (
      PARTITION BY c.run_id, c.device_id ORDER BY c.start_ps, c.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS last_end_ps
  FROM main.collectives AS c
),

-- most follow the one that ends last; where an earlier one outlasts the one before, it is looked for by its end
outlasted AS (
  SELECT
    o.run_id AS run_id,
    o.device_id AS device_id,
    o.phase AS phase,
    o.event_id AS event_id,
    o.axis AS axis,
    o.start_ps AS start_ps,
    o.last_end_ps AS last_end_ps,
    l.axis AS last_axis,
    l.phase AS last_phase,
    ROW_NUMBER() OVER (PARTITION BY o.run_id, o.event_id ORDER BY l.start_ps DESC, l.event_id DESC) AS place
  FROM followed AS o
  INNER JOIN main.collectives AS l
    ON
      o.run_id = l.run_id AND o.device_id = l.device_id AND o.last_end_ps = l.end_ps
      AND (o.start_ps > l.start_ps OR (o.start_ps = l.start_ps AND o.event_id > l.event_id))
  WHERE o.previous_end_ps < o.last_end_ps
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
    e.last_axis AS last_axis,
    e.last_phase AS last_phase
  FROM outlasted AS e
  WHERE e.place = 1
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
