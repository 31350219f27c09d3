/*---
parameters:
  run: The run, by its id.
  begin_ps: Start of the window.
  finish_ps: End of the window, exclusive.
  stretch_ps: Length of the stretches into which the window is divided.
reads_runs: [run]
description: >
  The class of ops that takes most of each stretch of time in a lane of macros.timeline_bars. Neighbouring stretches of
  one class share a row. An op counts for the stretch in which it starts.
---*/
WITH placed AS (
  SELECT run_id, instruction_id, device_id, (start_ps - begin_ps) // stretch_ps AS stretch, duration_ps
  FROM main.ops
  WHERE run_id = run AND is_leaf AND device_id IS NOT NULL AND start_ps >= begin_ps AND start_ps < finish_ps
),

timed AS (
  SELECT
    p.device_id,
    CASE c.class WHEN 'communication' THEN c.class ELSE 'core' END AS lane,
    p.stretch, c.class,
    SUM(p.duration_ps) AS time_ps
  FROM placed AS p
  INNER JOIN models.instruction_classes AS c USING (run_id, instruction_id)
  GROUP BY ALL
),

largest AS (
  SELECT *
  FROM timed
  QUALIFY ROW_NUMBER() OVER (PARTITION BY device_id, lane, stretch ORDER BY time_ps DESC, class) = 1
),

numbered AS (
  SELECT *, stretch - ROW_NUMBER() OVER (PARTITION BY device_id, class ORDER BY stretch) AS series
  FROM largest
)

SELECT
  device_id,
  lane, -- core or communication.
  MIN(stretch) * stretch_ps / 1e9 AS start_ms, -- Start of the first stretch, since the start of the window.
  (MAX(stretch) + 1) * stretch_ps / 1e9 AS end_ms, -- End of the last stretch.
  class, -- The class, as in models.instruction_classes.
  COUNT(*) AS stretches, -- Number of stretches.
  SUM(time_ps) / 1e6 AS duration_us -- Time of the ops of the class.
FROM numbered
GROUP BY device_id, lane, class, series
