/*---
metric: traffic_interval_histogram
version: 1
status: stable
unit: count
polarity: none
grain: [run_id, phase, axis_from, axis_to, from_us]
value: intervals
requires: SELECT i.run_id FROM models.traffic_intervals AS i
description: >
  How many of the intervals of traffic_interval fall into each decade from 1 us to 10 ms, those below and those above;
  all devices together. A bin without intervals has no row.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  axis_from: Mesh axes of the collective that ends.
  axis_to: Mesh axes of the collective that starts.
  from_us: Lower end of the bin, inclusive.
  until_us: Upper end of the bin, exclusive; NULL for the last.
  intervals: Number of intervals.
changed: First version.
---*/
WITH placed AS (
  SELECT
    i.run_id AS run_id,
    i.phase AS phase,
    i.axis_from AS axis_from,
    i.axis_to AS axis_to,
    CAST(
      CASE
        WHEN i.interval_ps < 1000000 THEN 0
        WHEN i.interval_ps < 10000000 THEN 1
        WHEN i.interval_ps < 100000000 THEN 10
        WHEN i.interval_ps < 1000000000 THEN 100
        WHEN i.interval_ps < 10000000000 THEN 1000
        ELSE 10000
      END AS BIGINT
    ) AS from_us
  FROM models.traffic_intervals AS i
)

SELECT
  p.run_id AS run_id,
  p.phase AS phase,
  p.axis_from AS axis_from,
  p.axis_to AS axis_to,
  p.from_us AS from_us,
  CASE WHEN p.from_us = 0 THEN 1 WHEN p.from_us < 10000 THEN p.from_us * 10 ELSE NULL END AS until_us,
  COUNT(*) AS intervals
FROM placed AS p
GROUP BY p.run_id, p.phase, p.axis_from, p.axis_to, p.from_us
