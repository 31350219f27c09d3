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
WITH numbered AS (
  SELECT
    c.run_id AS run_id,
    c.device_id AS device_id,
    c.phase AS phase,
    c.event_id AS event_id,
    c.axis AS axis,
    c.start_ps AS start_ps,
    c.end_ps AS end_ps,
    ROW_NUMBER() OVER (PARTITION BY c.run_id, c.device_id ORDER BY c.start_ps, c.event_id) AS place,
    MAX(c.end_ps) OVER (
      PARTITION BY c.run_id, c.device_id ORDER BY c.start_ps, c.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS last_end_ps
  FROM main.collectives AS c
),

followed AS (
  SELECT
    n.run_id AS run_id,
    n.device_id AS device_id,
    n.phase AS phase,
    n.event_id AS event_id,
    n.axis AS axis,
    n.start_ps AS start_ps,
    n.last_end_ps AS last_end_ps,
    MAX(CASE WHEN n.last_end_ps IS NULL OR n.end_ps >= n.last_end_ps THEN n.place ELSE NULL END) OVER (
      PARTITION BY n.run_id, n.device_id ORDER BY n.start_ps, n.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS last_place
  FROM numbered AS n
)

SELECT
  f.run_id AS run_id,
  f.device_id AS device_id,
  f.phase AS phase,
  f.event_id AS event_id,
  p.axis AS axis_from,
  f.axis AS axis_to,
  GREATEST(f.start_ps - f.last_end_ps, 0) AS interval_ps,
  f.start_ps < f.last_end_ps AS is_overlapping
FROM followed AS f
INNER JOIN numbered AS p
  ON f.run_id = p.run_id AND f.device_id = p.device_id AND f.last_place = p.place
WHERE COALESCE(f.phase, '') = COALESCE(p.phase, '')
