/*---
parameters: [runs]
reads_runs: [runs]
description: >
  Whether the devices of a run, and its layers, take equally long: a row per phase. The busiest device is compared with
  the mean device. The layer farthest from the median layer is compared with that layer.
notes: >
  Compute is that of metrics.load_imbalance and layers are those of macros.mean_layers.
---*/
WITH busy AS (
  SELECT run_id, device_id, phase, compute_ps
  FROM models.device_phases
  WHERE LIST_CONTAINS(runs, run_id)
),

-- a device that computes nothing is only copied to
computing AS (
  SELECT run_id, device_id
  FROM busy
  GROUP BY run_id, device_id
  HAVING SUM(compute_ps) > 0
),

balance AS (
  SELECT
    run_id, b.phase,
    COUNT(*) AS devices,
    MAX(b.compute_ps) * COUNT(*) / NULLIF(SUM(b.compute_ps), 0) AS compute_imbalance,
    ARG_MAX(b.device_id, (b.compute_ps, -b.device_id)) AS busiest_device
  FROM busy AS b
  INNER JOIN computing USING (run_id, device_id)
  GROUP BY run_id, b.phase
),

ops AS (
  SELECT run_id, phase, layer, device_id, SUM(self_ps) AS self_ps
  FROM models.layer_ops
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id, phase, layer, device_id
),

layers AS (
  SELECT o.run_id, o.phase, o.layer, SUM(o.self_ps) / (SUM(COALESCE(s.steps, 1)) * 1e6) AS self_us
  FROM ops AS o
  LEFT JOIN models.phase_steps AS s
    ON o.run_id = s.run_id AND o.device_id = s.device_id AND o.phase IS NOT DISTINCT FROM s.phase
  GROUP BY o.run_id, o.phase, o.layer
),

ranked AS (
  SELECT
    *,
    CUME_DIST() OVER (PARTITION BY run_id, phase ORDER BY self_us) AS quantile
  FROM layers
),

medians AS (
  SELECT run_id, phase, COUNT(*) AS layers, MIN(self_us) FILTER (WHERE quantile >= 0.5) AS median_us
  FROM ranked
  GROUP BY run_id, phase
),

odd AS (
  SELECT
    l.run_id, l.phase,
    MIN(m.layers) AS layers,
    ARG_MAX(l.layer, (ABS(l.self_us - m.median_us), -l.layer)) AS odd_layer,
    ARG_MAX(l.self_us / NULLIF(m.median_us, 0) - 1, (ABS(l.self_us - m.median_us), -l.layer)) AS odd_difference
  FROM layers AS l
  INNER JOIN medians AS m ON l.run_id = m.run_id AND l.phase IS NOT DISTINCT FROM m.phase
  GROUP BY l.run_id, l.phase
)

SELECT
  b.run_id, b.phase,
  b.devices, -- Devices that ran the phase and compute.
  -- Compute time of the busiest device over the mean; NULL without compute.
  b.compute_imbalance,
  b.busiest_device, -- The device that computes longest.
  o.layers, -- Layers of the phase; NULL if unknown.
  o.odd_layer, -- The layer whose time is farthest from the median layer's.
  o.odd_difference -- How much longer it takes than the median layer, as a share of it; negative if it takes less.
FROM balance AS b
LEFT JOIN odd AS o ON b.run_id = o.run_id AND b.phase IS NOT DISTINCT FROM o.phase
