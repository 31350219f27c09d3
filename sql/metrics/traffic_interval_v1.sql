/*---
metric: traffic_interval
version: 1
status: stable
unit: us
polarity: none
grain: [run_id, phase, axis_from, axis_to]
value: interval_us
requires: SELECT i.run_id FROM models.traffic_intervals AS i
description: >
  Time on a device from the end of one collective to the start of the next, of the same axis or of another, mean over all
  devices, percentiles by nearest rank. The one before is that which ends last of those that started earlier; a collective
  that starts before its end follows at 0. Both are of the same phase; the gaps between its steps count.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  axis_from: Mesh axes of the collective that ends.
  axis_to: Mesh axes of the collective that starts.
  interval_us: Mean interval.
  p50_us: Median.
  p90_us: 90th percentile.
  p99_us: 99th percentile.
  intervals: Number of intervals on all devices.
  overlapping: Those in which the next started before the end of the one before.
changed: First version.
ccl_bench: traffic_window
---*/
WITH ranked AS (
  SELECT
    i.run_id AS run_id,
    i.phase AS phase,
    i.axis_from AS axis_from,
    i.axis_to AS axis_to,
    i.interval_ps AS interval_ps,
    i.is_overlapping AS is_overlapping,
    ROW_NUMBER() OVER (
      PARTITION BY i.run_id, i.phase, i.axis_from, i.axis_to ORDER BY i.interval_ps, i.event_id
    ) AS place,
    COUNT(*) OVER (PARTITION BY i.run_id, i.phase, i.axis_from, i.axis_to) AS places
  FROM models.traffic_intervals AS i
)

SELECT
  r.run_id AS run_id,
  r.phase AS phase,
  r.axis_from AS axis_from,
  r.axis_to AS axis_to,
  CAST(SUM(r.interval_ps) AS DOUBLE) / CAST(COUNT(*) * 1000000 AS DOUBLE) AS interval_us,
  CAST(MIN(CASE WHEN r.place * 100 >= r.places * 50 THEN r.interval_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000 AS DOUBLE) AS p50_us,
  CAST(MIN(CASE WHEN r.place * 100 >= r.places * 90 THEN r.interval_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000 AS DOUBLE) AS p90_us,
  CAST(MIN(CASE WHEN r.place * 100 >= r.places * 99 THEN r.interval_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000 AS DOUBLE) AS p99_us,
  COUNT(*) AS intervals,
  CAST(SUM(CASE WHEN r.is_overlapping THEN 1 ELSE 0 END) AS BIGINT) AS overlapping
FROM ranked AS r
GROUP BY r.run_id, r.phase, r.axis_from, r.axis_to
