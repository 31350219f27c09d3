/*---
parameters:
  run: The run, by its id.
  device: The device.
  from_ps: Start of the window.
  until_ps: End of the window.
  slice_ps: Length of a slice; the last one may be shorter.
reads_runs: [run]
description: >
  What a device does in each slice of a window of time. Each moment counts once, for the op that covers it first, so that
  compute, communication, copy and idle add up to the slice.
---*/
WITH inside AS (
  SELECT
    name, op_class,
    -- the time that an op adds to earlier ones is the end of its duration, so these stretches do not overlap
    GREATEST(end_ps - busy_ps, from_ps) AS begin_ps,
    LEAST(end_ps, until_ps) AS end_ps
  FROM models.leaf_ops
  WHERE run_id = run AND device_id = device AND start_ps < until_ps AND end_ps > from_ps
),

sliced AS (
  SELECT
    *,
    UNNEST(RANGE((begin_ps - from_ps) // slice_ps, (end_ps - 1 - from_ps) // slice_ps + 1)) AS slice
  FROM inside
  WHERE end_ps > begin_ps
),

timed AS (
  SELECT
    slice, name, op_class,
    SUM(LEAST(end_ps, from_ps + (slice + 1) * slice_ps) - GREATEST(begin_ps, from_ps + slice * slice_ps)) AS time_ps
  FROM sliced
  GROUP BY slice, name, op_class
),

summed AS (
  SELECT
    slice,
    SUM(time_ps) AS busy_ps,
    SUM(time_ps) FILTER (WHERE op_class = 'compute') AS compute_ps,
    SUM(time_ps) FILTER (WHERE op_class = 'communication') AS communication_ps,
    SUM(time_ps) FILTER (WHERE op_class = 'copy') AS copy_ps,
    ARG_MAX(name, (time_ps, name)) AS largest_op
  FROM timed
  GROUP BY slice
),

slices AS (
  SELECT
    slice,
    from_ps + slice * slice_ps AS start_ps,
    LEAST(from_ps + (slice + 1) * slice_ps, until_ps) AS end_ps
  FROM UNNEST(RANGE(0, (until_ps - from_ps + slice_ps - 1) // slice_ps)) AS numbers (slice)
)

SELECT
  s.start_ps / 1e9 AS start_ms, -- Start of the slice, since the profile start.
  s.end_ps / 1e9 AS until_ms, -- Its end.
  COALESCE(b.compute_ps, 0) / 1e6 AS compute_us, -- Time of compute.
  COALESCE(b.communication_ps, 0) / 1e6 AS communication_us, -- Time of communication.
  COALESCE(b.copy_ps, 0) / 1e6 AS copy_us, -- Time of copies.
  (s.end_ps - s.start_ps - COALESCE(b.busy_ps, 0)) / 1e6 AS idle_us, -- Time without an op.
  b.largest_op -- The instruction with the most time in the slice; NULL where the device is idle.
FROM slices AS s
LEFT JOIN summed AS b USING (slice)
