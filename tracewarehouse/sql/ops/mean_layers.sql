/*---
parameters: [runs]
reads_runs: [runs]
description: >
  One mean layer of each phase, in the order of execution. A bar is a sequence of ops that do the same for one part of
  the model. Each layer has its distance from the median.
notes: >
  A time is self time per step and device that runs the layer. Ops of two layers correspond if they have the same class,
  part and name without its number, and the same number of such ops before them in their layer. The order is that of the
  first execution. An op of less than half a percent of a layer belongs to the bar before it.
---*/
WITH placed AS (
  SELECT run_id, device_id, phase, instruction_id, layer, self_ps, start_ps
  FROM models.layer_ops
  WHERE LIST_CONTAINS(runs, run_id)
),

ran AS (
  SELECT run_id, device_id, phase, layer
  FROM placed
  GROUP BY run_id, device_id, phase, layer
),

stepped AS (
  SELECT r.run_id, r.phase, r.layer, SUM(COALESCE(s.steps, 1)) AS steps
  FROM ran AS r
  LEFT JOIN models.phase_steps AS s
    ON r.run_id = s.run_id AND r.device_id = s.device_id AND r.phase IS NOT DISTINCT FROM s.phase
  GROUP BY r.run_id, r.phase, r.layer
),

ops AS (
  SELECT
    run_id, p.phase, p.layer, c.class, i.part,
    REGEXP_REPLACE(i.name, '([.][0-9]+)+$', '') AS op,
    instruction_id,
    SUM(p.self_ps) AS self_ps,
    MIN(p.start_ps) AS start_ps
  FROM placed AS p
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  INNER JOIN models.instruction_classes AS c USING (run_id, instruction_id)
  GROUP BY run_id, p.phase, p.layer, c.class, i.part, i.name, instruction_id
),

numbered AS (
  SELECT
    o.run_id, o.phase, o.layer, o.class, o.part, o.op,
    o.self_ps / (s.steps * 1e6) AS self_us,
    o.start_ps - MIN(o.start_ps) OVER (PARTITION BY o.run_id, o.phase, o.layer) AS offset_ps,
    ROW_NUMBER() OVER (
      PARTITION BY o.run_id, o.phase, o.layer, o.class, o.part, o.op ORDER BY o.start_ps, o.instruction_id
    ) AS occurrence
  FROM ops AS o
  INNER JOIN stepped AS s ON o.run_id = s.run_id AND o.phase IS NOT DISTINCT FROM s.phase AND o.layer = s.layer
),

totals AS (
  SELECT run_id, phase, layer, SUM(self_us ORDER BY self_us) AS self_us
  FROM numbered
  GROUP BY run_id, phase, layer
),

ranked AS (
  SELECT
    *,
    COUNT(*) OVER (PARTITION BY run_id, phase) AS layers,
    CUME_DIST() OVER (PARTITION BY run_id, phase ORDER BY self_us) AS quantile
  FROM totals
),

medians AS (
  SELECT run_id, phase, MIN(layers) AS layers, MIN(self_us) FILTER (WHERE quantile >= 0.5) AS median_us
  FROM ranked
  GROUP BY run_id, phase
),

same AS (
  SELECT
    n.run_id, n.phase, n.class, n.part, n.op, n.occurrence,
    SUM(n.self_us ORDER BY n.self_us) / MIN(m.layers) AS self_us,
    SUM(n.offset_ps) / COUNT(*) AS offset_ps,
    COUNT(*) >= 0.8 * MIN(m.layers) AS is_common
  FROM numbered AS n
  INNER JOIN medians AS m ON n.run_id = m.run_id AND n.phase IS NOT DISTINCT FROM m.phase
  GROUP BY n.run_id, n.phase, n.class, n.part, n.op, n.occurrence
),

alike AS (
  SELECT run_id, phase, COALESCE(SUM(self_us) FILTER (WHERE is_common), 0) >= 0.9 * SUM(self_us) AS is_alike
  FROM same
  GROUP BY run_id, phase
),

ordered AS (
  SELECT
    s.run_id, s.phase, s.class, s.part, s.op, s.self_us,
    ROW_NUMBER() OVER (PARTITION BY s.run_id, s.phase ORDER BY s.offset_ps, s.op, s.occurrence) AS place,
    s.self_us < 0.005 * m.median_us AS is_small
  FROM same AS s
  INNER JOIN medians AS m ON s.run_id = m.run_id AND s.phase IS NOT DISTINCT FROM m.phase
),

followed AS (
  SELECT
    *,
    LAG(class) OVER (PARTITION BY run_id, phase ORDER BY place) AS class_before,
    LAG(part) OVER (PARTITION BY run_id, phase ORDER BY place) AS part_before
  FROM ordered
  WHERE NOT is_small
),

-- A small op belongs to the bar before it.
firsts AS (
  SELECT run_id, phase, place
  FROM followed
  WHERE class IS DISTINCT FROM class_before OR part IS DISTINCT FROM part_before
),

stretches AS (
  SELECT
    o.run_id, o.phase, o.class, o.part, o.op, o.self_us, o.place,
    GREATEST(1, COUNT(f.place) OVER (
      PARTITION BY o.run_id, o.phase ORDER BY o.place ROWS UNBOUNDED PRECEDING
    )) AS stretch
  FROM ordered AS o
  LEFT JOIN firsts AS f ON o.run_id = f.run_id AND o.phase IS NOT DISTINCT FROM f.phase AND o.place = f.place
),

bars AS (
  SELECT
    run_id, phase, stretch,
    ARG_MAX(class, (self_us, -place)) AS class,
    ARG_MAX(part, (self_us, -place)) AS part,
    ARG_MAX(op, (self_us, -place)) AS op,
    COUNT(*) AS ops,
    SUM(self_us ORDER BY place) AS self_us
  FROM stretches
  GROUP BY run_id, phase, stretch
),

drawn AS (
  SELECT
    'mean layer' AS what, run_id, phase, CAST(NULL AS BIGINT) AS layer, class, part, op, ops, stretch AS place, self_us,
    SUM(self_us) OVER (PARTITION BY run_id, phase ORDER BY stretch ROWS UNBOUNDED PRECEDING) AS until_us
  FROM bars
  UNION ALL
  SELECT
    'layer' AS what, run_id, phase, layer, NULL AS class, NULL AS part, NULL AS op, NULL AS ops, layer AS place,
    self_us, NULL AS until_us
  FROM totals
)

SELECT
  d.run_id,
  d.phase, -- Phase; NULL in steps without one.
  d.what, -- mean layer for a bar of it, or layer.
  d.layer, -- The layer; NULL for a bar of the mean layer.
  d.class, -- What the bar's ops do, as in models.instruction_classes.
  d.part, -- Their part of the model; NULL if unknown.
  d.op, -- The bar's op with the most time.
  -- What people call the bar.
  CASE d.class WHEN 'communication' THEN d.op WHEN 'attention' THEN d.class ELSE COALESCE(d.part, d.class) END AS name,
  d.ops, -- Number of its ops.
  d.place, -- Place of the bar in the order of execution, or the layer.
  d.self_us, -- Time of the bar, or of the layer.
  d.until_us - d.self_us AS begin_us, -- Where the bar begins.
  d.until_us, -- Where it ends.
  m.layers, -- Number of layers.
  m.median_us, -- Median time of a layer.
  CASE d.what WHEN 'layer' THEN d.self_us - m.median_us END AS difference_us, -- How far the layer is from it.
  a.is_alike -- True if ops that nearly every layer has take at least 90 % of the time.
FROM drawn AS d
INNER JOIN medians AS m ON d.run_id = m.run_id AND d.phase IS NOT DISTINCT FROM m.phase
INNER JOIN alike AS a ON d.run_id = a.run_id AND d.phase IS NOT DISTINCT FROM a.phase
