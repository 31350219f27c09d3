/*---
parameters: [run]
reads_runs: [run]
description: >
  The window of a run that the timeline draws, as one row: two layers in the middle of a typical step; without layers that
  step and the next, with the idle time behind them; without steps all ops.
notes: >
  The typical step belongs to the phase that takes most time. Its length and idle share, and those of the next step, are
  closest to the medians of the phase. The layers are neighbours on the device with the lowest number. A run whose
  devices ran no op has no row.
---*/
WITH ran AS (
  SELECT *
  FROM models.run_steps
  WHERE run_id = run
),

lasted AS (
  SELECT run_id, device_id, step, step_ps
  FROM models.steps
  WHERE run_id = run AND clock = 'device'
),

busy AS (
  SELECT run_id, device_id, step, busy_ps
  FROM models.device_busy
  WHERE run_id = run
),

measured AS (
  SELECT
    run_id, step,
    SUM(s.step_ps) / COUNT(*) AS mean_ps,
    SUM(GREATEST(s.step_ps - COALESCE(b.busy_ps, 0), 0)) / COUNT(*) AS idle_ps,
    COALESCE(SUM(GREATEST(s.step_ps - COALESCE(b.busy_ps, 0), 0)) / NULLIF(SUM(s.step_ps), 0), 0) AS idle_share
  FROM lasted AS s
  LEFT JOIN busy AS b USING (run_id, device_id, step)
  GROUP BY run_id, step
),

steps AS (
  SELECT
    step, s.phase, s.start_ps, s.until_ps, s.longest_ps, s.is_timed, m.mean_ps, m.idle_ps, m.idle_share,
    SUM(s.longest_ps) OVER (PARTITION BY s.phase) AS phase_ps,
    COUNT(*) OVER (PARTITION BY s.phase) AS steps,
    LEAD(step) OVER (ORDER BY s.start_ps, step) AS next_step,
    LEAD(s.until_ps) OVER (ORDER BY s.start_ps, step) AS next_until_ps,
    LEAD(s.longest_ps) OVER (ORDER BY s.start_ps, step) AS next_longest_ps,
    LEAD(m.idle_share) OVER (ORDER BY s.start_ps, step) AS next_idle_share,
    COALESCE(LEAD(NOT s.is_last) OVER (ORDER BY s.start_ps, step), FALSE) AS is_followed_twice
  FROM ran AS s
  INNER JOIN measured AS m USING (run_id, step)
),

candidates AS (
  SELECT
    *,
    CUME_DIST() OVER (ORDER BY longest_ps) AS length_quantile,
    CUME_DIST() OVER (ORDER BY idle_share) AS idle_quantile
  FROM (
    SELECT *
    FROM steps
    QUALIFY DENSE_RANK() OVER (ORDER BY phase_ps DESC, phase, is_timed DESC, is_followed_twice DESC) = 1
  ) AS longest
),

medians AS (
  SELECT
    MIN(longest_ps) FILTER (WHERE length_quantile >= 0.5) AS longest_ps,
    MIN(idle_share) FILTER (WHERE idle_quantile >= 0.5) AS idle_share
  FROM candidates
),

typical AS (
  SELECT c.*
  FROM candidates AS c
  CROSS JOIN medians AS m
  QUALIFY
    ROW_NUMBER() OVER (
      ORDER BY
        COALESCE(
          (ABS(c.longest_ps - m.longest_ps) + COALESCE(ABS(c.next_longest_ps - m.longest_ps), 0))
          / NULLIF(m.longest_ps, 0), 0
        )
        + ABS(c.idle_share - m.idle_share) + COALESCE(ABS(c.next_idle_share - m.idle_share), 0),
        c.step
    ) = 1
),

ops AS (
  SELECT
    run_id, device_id, instruction_id, iteration, step, start_ps,
    start_ps + duration_ps AS end_ps,
    start_ps - COALESCE(idle_before_ps, 0) AS idle_start_ps
  FROM main.ops
  WHERE run_id = run AND is_leaf AND device_id IS NOT NULL
),

layers AS (
  SELECT
    o.device_id, CASE
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
  SELECT
    0 AS choice, t.step, NULL AS next_step,
    t.phase, t.steps, t.mean_ps, t.idle_ps, p.layer, p.start_ps AS begin_ps, p.end_ps AS finish_ps
  FROM pairs AS p
  CROSS JOIN typical AS t
  WHERE p.place = (p.pairs + 1) // 2
  UNION ALL
  SELECT
    1 AS choice, step, next_step, phase, steps, mean_ps, idle_ps, NULL AS layer, start_ps AS begin_ps,
    COALESCE(next_until_ps, until_ps) AS finish_ps
  FROM typical
  WHERE step IN (SELECT o.step FROM ops AS o)
  UNION ALL
  SELECT
    2 AS choice, NULL AS step, NULL AS next_step, NULL AS phase, NULL AS steps, NULL AS mean_ps, NULL AS idle_ps,
    NULL AS layer,
    MIN(start_ps) AS begin_ps,
    MAX(end_ps) AS finish_ps
  FROM ops
  HAVING COUNT(*) > 0
),

chosen AS (
  SELECT *
  FROM windows
  QUALIFY ROW_NUMBER() OVER (ORDER BY choice) = 1
),

inside AS (
  SELECT
    SUM(GREATEST(LEAST(o.start_ps, c.finish_ps) - GREATEST(o.idle_start_ps, c.begin_ps), 0))
    / COUNT(DISTINCT o.device_id) AS idle_ps
  FROM ops AS o
  INNER JOIN chosen AS c ON o.start_ps > c.begin_ps AND o.idle_start_ps < c.finish_ps
)

SELECT
  c.begin_ps,
  c.finish_ps, -- Its end, exclusive.
  c.layer, -- The first of two layers; NULL without layers.
  c.step, -- The typical step; NULL without steps.
  c.next_step, -- The step after it, if the window has both.
  c.phase, -- Phase of the step; NULL for none.
  c.steps, -- Steps of the phase.
  c.mean_ps AS step_ps, -- Time of the step, mean over devices.
  -- Idle time of the step before or after the two layers, mean over devices; NULL without layers.
  CASE WHEN c.layer IS NOT NULL THEN GREATEST(c.idle_ps - COALESCE(i.idle_ps, 0), 0) END AS idle_outside_ps
FROM chosen AS c
CROSS JOIN inside AS i
