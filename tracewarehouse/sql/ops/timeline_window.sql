/*---
macro: timeline_window
parameters:
  run: The run, by its id.
reads_runs: [run]
description: >
  The window of a run that the timeline draws, as one row: two layers in the middle of a typical step; without layers that
  step and the next; without steps all ops.
notes: >
  The typical step is the one of median length in the phase that takes most time. The layers are two that follow each
  other on the device of the lowest number. Without an op on a device there is no row.
---*/
WITH steps AS (
  SELECT
    step, phase, start_ps, longest_ps, is_timed,
    SUM(longest_ps) OVER (PARTITION BY phase) AS phase_ps,
    LEAD(step) OVER (ORDER BY start_ps, step) AS next_step
  FROM models.run_steps
  WHERE run_id = run
),

ranked AS (
  SELECT
    step, phase, next_step,
    ROW_NUMBER() OVER (ORDER BY longest_ps, step) AS place,
    COUNT(*) OVER () AS steps
  FROM (
    SELECT *
    FROM steps
    QUALIFY DENSE_RANK() OVER (ORDER BY phase_ps DESC, phase, is_timed DESC) = 1
  ) AS longest
),

typical AS (
  SELECT step, phase, next_step
  FROM ranked
  WHERE place = (steps + 1) // 2
),

ops AS (
  SELECT run_id, device_id, instruction_id, iteration, step, start_ps, start_ps + duration_ps AS end_ps
  FROM main.ops
  WHERE run_id = run AND is_leaf AND device_id IS NOT NULL
),

layers AS (
  SELECT
    o.device_id,
    CASE
      WHEN l.layers_per_iteration IS NULL THEN l.first_layer
      ELSE l.first_layer + o.iteration * l.layers_per_iteration
    END AS layer,
    MIN(o.start_ps) AS start_ps,
    MAX(o.end_ps) AS end_ps
  FROM ops AS o
  INNER JOIN typical AS t ON o.step = t.step
  INNER JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id)
  WHERE l.first_layer IS NOT NULL
  GROUP BY ALL
),

pairs AS (
  SELECT
    layer, start_ps, next_end_ps AS end_ps,
    ROW_NUMBER() OVER (ORDER BY layer) AS place,
    COUNT(*) OVER () AS pairs
  FROM (
    SELECT
      *,
      LEAD(layer) OVER (PARTITION BY device_id ORDER BY layer) AS next_layer,
      LEAD(end_ps) OVER (PARTITION BY device_id ORDER BY layer) AS next_end_ps
    FROM layers
    QUALIFY DENSE_RANK() OVER (ORDER BY device_id) = 1
  ) AS followed
  WHERE next_layer = layer + 1
),

windows AS (
  SELECT 0 AS choice, t.step, t.next_step, t.phase, p.layer, p.start_ps AS begin_ps, p.end_ps AS finish_ps
  FROM pairs AS p
  CROSS JOIN typical AS t
  WHERE p.place = (p.pairs + 1) // 2
  UNION ALL
  SELECT
    1 AS choice,
    t.step, t.next_step, t.phase,
    NULL AS layer,
    MIN(o.start_ps) AS begin_ps,
    MAX(o.end_ps) AS finish_ps
  FROM ops AS o
  INNER JOIN typical AS t ON o.step IN (t.step, t.next_step)
  GROUP BY t.step, t.next_step, t.phase
  UNION ALL
  SELECT
    2 AS choice,
    NULL AS step,
    NULL AS next_step,
    NULL AS phase,
    NULL AS layer,
    MIN(start_ps) AS begin_ps,
    MAX(end_ps) AS finish_ps
  FROM ops
  HAVING COUNT(*) > 0
)

SELECT
  begin_ps, -- Start of the window.
  finish_ps, -- Its end, exclusive.
  layer, -- The first of two layers; NULL without layers.
  step, -- The typical step; NULL without steps.
  CASE WHEN layer IS NULL THEN next_step END AS next_step, -- The step after it, if the window has both.
  phase -- Phase of the step; NULL for none.
FROM windows
QUALIFY ROW_NUMBER() OVER (ORDER BY choice) = 1
