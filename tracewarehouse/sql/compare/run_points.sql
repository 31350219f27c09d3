/*---
parameters: [runs]
reads_runs: [runs]
description: >
  How runs compare: a row per run with its workload, its chips, and its stored latencies and throughput. A run is on the
  Pareto front if no rival is better in throughput per user or per chip and at least as good in the other. Rivals have
  the same model, layers and parameters, and both are predicted or both recorded.
notes: >
  Values are on the hosts' clock where the hosts have markers that time steps, else on the devices' (models.launched_runs).
---*/
WITH wanted AS (
  SELECT
    run_id, name, origin,
    COALESCE(model, model_family, 'unknown') AS model,
    dtype,
    COALESCE(mesh, 'unknown') AS mesh,
    batch_size, input_length, output_length, profile_start_ns, framework, mesh AS recorded_mesh,
    backend, num_layers, num_params, host_count AS hosts
  FROM main.runs
  WHERE LIST_CONTAINS(runs, run_id)
),

latencies AS (
  SELECT
    run_id, metric,
    MIN(value) FILTER (WHERE dimensions ->> '$.clock' = 'host') AS host_ms,
    MIN(value) FILTER (WHERE dimensions ->> '$.clock' = 'device') AS device_ms
  FROM main.metric_values
  WHERE metric IN ('ttft', 'tpot') AND LIST_CONTAINS(runs, run_id)
  GROUP BY run_id, metric
),

clocked AS (
  SELECT
    v.run_id, v.metric,
    CASE WHEN l.run_id IS NULL THEN COALESCE(v.host_ms, v.device_ms) ELSE COALESCE(v.device_ms, v.host_ms) END AS ms
  FROM latencies AS v
  LEFT JOIN models.launched_runs AS l ON v.run_id = l.run_id
),

rates AS (
  SELECT run_id, MAX(value) AS tokens_per_s
  FROM main.metric_values
  WHERE metric = 'throughput' AND LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

points AS (
  SELECT
    run_id, r.name, r.origin,
    -- Factors of links and HBM, time of the host for a step, and of kernels in microseconds; price, own rates.
    NULLIF(
      CONCAT_WS(
        ', ',
        CASE WHEN w.ici_factor <> 1 THEN 'ICI x ' || w.ici_factor END,
        CASE WHEN w.hbm_factor <> 1 THEN 'HBM x ' || w.hbm_factor END,
        CASE WHEN w.host_ps <> 0 THEN 'host ' || (w.host_ps / 1e9) || ' ms' END,
        'kernels ' || w.kernels,
        'chip at ' || w.chip_price_usd_per_h || ' USD/h',
        'rates of ' || w.calibration
      ), ''
    ) AS what_if,
    r.model, r.dtype, r.mesh, r.batch_size, r.input_length, r.output_length, c.kind AS device_kind,
    c.chips, r.profile_start_ns, r.framework, r.num_layers, r.num_params, f.ms AS ttft_ms, t.ms AS tpot_ms,
    q.tokens_per_s,
    1e3 / t.ms AS tokens_per_s_per_user,
    q.tokens_per_s / c.chips AS tokens_per_s_per_chip
  FROM wanted AS r
  LEFT JOIN models.run_chips AS c USING (run_id)
  LEFT JOIN models.what_ifs AS w USING (run_id)
  LEFT JOIN clocked AS f ON r.run_id = f.run_id AND f.metric = 'ttft'
  LEFT JOIN clocked AS t ON r.run_id = t.run_id AND t.metric = 'tpot'
  LEFT JOIN rates AS q USING (run_id)
),

axes AS (
  SELECT run_id, STRING_AGG(COALESCE(axis, '?') || '=' || size, ',' ORDER BY "position") AS mesh
  FROM main.mesh_axes
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

flagged AS (
  SELECT run_id, LIST_SORT(LIST_DISTINCT(LIST(flag))) AS flags
  FROM main.quality_flags
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

beaten AS (
  SELECT p.run_id, TRUE AS is_beaten
  FROM points AS p
  INNER JOIN points AS b
    ON
      p.model = b.model AND p.origin = b.origin AND p.what_if IS NOT DISTINCT FROM b.what_if
      AND p.num_layers IS NOT DISTINCT FROM b.num_layers
      AND p.num_params IS NOT DISTINCT FROM b.num_params
      AND p.tokens_per_s_per_user <= b.tokens_per_s_per_user
      AND p.tokens_per_s_per_chip <= b.tokens_per_s_per_chip
      AND (
        p.tokens_per_s_per_user < b.tokens_per_s_per_user OR p.tokens_per_s_per_chip < b.tokens_per_s_per_chip
      )
  GROUP BY p.run_id
)

SELECT
  run_id, p.name, p.origin, p.model,
  -- The model as a chart names a series of runs: predicted runs are a series of their own.
  CASE WHEN p.origin = 'predicted' THEN p.model || ', predicted' || COALESCE(', ' || p.what_if, '') ELSE p.model END
    AS series,
  p.num_layers AS layers, -- Transformer layers.
  p.dtype, -- Precision.
  p.mesh, p.batch_size,
  p.input_length, -- Prompt tokens of a sequence.
  p.output_length, -- Generated tokens of a sequence.
  p.device_kind,
  p.chips, -- Chips of the run, those outside the capture included.
  p.profile_start_ns, -- Start of the capture, Unix time.
  p.framework, -- What ran the model, with its version.
  p.ttft_ms, p.tpot_ms, p.tokens_per_s, p.tokens_per_s_per_user,
  p.tokens_per_s_per_chip, -- tokens_per_s / chips.
  -- On the Pareto front; NULL where one of its two rates is not known.
  CASE
    WHEN p.tokens_per_s_per_user IS NOT NULL AND p.tokens_per_s_per_chip IS NOT NULL THEN b.is_beaten IS NULL
  END AS is_on_front,
  COALESCE(w.recorded_mesh, a.mesh) AS axes, -- Mesh, or else the inferred axes and sizes; an axis without a name is '?'.
  w.backend, w.hosts,
  COALESCE(f.flags, []) AS flags -- Quality flags of the run.
FROM points AS p
INNER JOIN wanted AS w USING (run_id)
LEFT JOIN beaten AS b USING (run_id)
LEFT JOIN axes AS a USING (run_id)
LEFT JOIN flagged AS f USING (run_id)
