/*---
parameters: [runs]
reads_runs: [runs]
description: >
  The configurations of a study: a row per run with the workload that it shares with others, what tells it from them, its
  rates with the ranges of predicted ones, and its price. Runs of one workload compete.
notes: >
  Runs have one workload if model, layers, parameters, lengths, backend, origin and what-if are equal. Throughput counts
  whole requests, prompts included. Its range takes both phases at their low ends, or both at their high ends. Where two
  runs have the same configuration, their names tell them apart. A range leaves out what metrics.prediction_range says.
---*/
WITH ran AS (
  SELECT *
  FROM macros.run_points(runs)
),

predicted AS (
  SELECT
    run_id,
    MAX(argument_bytes + output_bytes + temporary_bytes + program_bytes) AS memory_bytes,
    MIN(capacity_bytes) AS capacity_bytes
  FROM main.predictions
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

points AS (
  SELECT
    p.*,
    m.memory_bytes, m.capacity_bytes,
    DENSE_RANK() OVER (
      ORDER BY
        p.series, p.layers, r.num_params, p.input_length, p.output_length, p.backend, p.origin
    ) AS work
  FROM ran AS p
  INNER JOIN main.runs AS r USING (run_id)
  LEFT JOIN predicted AS m USING (run_id)
),

ranges AS (
  SELECT
    run_id,
    MIN(low_ms + host_ms) FILTER (WHERE phase = 'prefill') AS ttft_low_ms,
    MIN(high_ms + host_ms) FILTER (WHERE phase = 'prefill') AS ttft_high_ms,
    MIN(low_ms + host_ms) FILTER (WHERE phase = 'decode') AS tpot_low_ms,
    MIN(high_ms + host_ms) FILTER (WHERE phase = 'decode') AS tpot_high_ms
  FROM metrics.prediction_range_v1
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

prices AS (
  SELECT
    run_id, CASE
      WHEN COUNT(chip_price_usd_per_h) = COUNT(*) AND MIN(chip_price_usd_per_h) = MAX(chip_price_usd_per_h)
        THEN MIN(chip_price_usd_per_h)
    END AS usd_per_h
  FROM main.devices
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

-- what differs inside of a workload
differing AS (
  SELECT
    work,
    COUNT(DISTINCT batch_size) > 1 AS has_batches,
    COUNT(DISTINCT dtype) > 1 AS has_dtypes,
    COUNT(DISTINCT device_kind) > 1 AS has_kinds,
    COUNT(DISTINCT chips) > 1 AS has_chips
  FROM points
  GROUP BY work
),

told AS (
  SELECT
    p.*,
    p.mesh
    || CASE WHEN d.has_batches THEN COALESCE(', batch ' || p.batch_size, '') ELSE '' END
    || CASE WHEN d.has_dtypes THEN COALESCE(', ' || p.dtype, '') ELSE '' END
    || CASE
      WHEN d.has_kinds THEN COALESCE(', ' || p.chips || ' x ' || p.device_kind, '')
      WHEN d.has_chips THEN COALESCE(', ' || p.chips || ' chips', '')
      ELSE ''
    END AS said,
    p.series || COALESCE(', ' || p.layers || ' layers', '') || COALESCE(', ' || p.input_length || ' in', '')
    || COALESCE(', ' || p.output_length || ' out', '') AS workload
  FROM points AS p
  INNER JOIN differing AS d USING (work)
),

named AS (
  SELECT
    *,
    CASE WHEN COUNT(*) OVER (PARTITION BY work, said) > 1 OR mesh = 'unknown' THEN name ELSE said END AS configuration,
    MAX(work) OVER (PARTITION BY workload) > MIN(work) OVER (PARTITION BY workload) AS is_shared_name,
    MAX(work) OVER () > 1 AS has_works
  FROM told
),

rivals AS (
  SELECT work, run_id, tokens_per_s_per_user, tokens_per_s_per_chip
  FROM points
  WHERE memory_bytes IS NULL OR capacity_bytes IS NULL OR memory_bytes <= capacity_bytes
),

beaten AS (
  SELECT p.run_id, TRUE AS is_beaten
  FROM rivals AS p
  INNER JOIN rivals AS b
    ON
      p.work = b.work
      AND p.tokens_per_s_per_user <= b.tokens_per_s_per_user
      AND p.tokens_per_s_per_chip <= b.tokens_per_s_per_chip
      AND (
        p.tokens_per_s_per_user < b.tokens_per_s_per_user OR p.tokens_per_s_per_chip < b.tokens_per_s_per_chip
      )
  GROUP BY p.run_id
)

SELECT
  run_id, n.name, n.origin, n.model, n.mesh,
  -- Model, layers and lengths, with a number where several workloads share these; predicted runs say so.
  CASE WHEN n.is_shared_name THEN n.workload || ' (' || n.work || ')' ELSE n.workload END AS workload,
  -- What tells the run from the others of its workload: mesh, and batch, precision and chips where they differ.
  n.configuration,
  -- The configuration, after its model where the study has several workloads; a name of a run stands alone.
  CASE WHEN n.has_works AND n.configuration <> n.name THEN n.series || ' ' || n.configuration ELSE n.configuration END
    AS label,
  -- Position in the workload, by throughput per chip; without prefill by that of decode.
  ROW_NUMBER() OVER (
    PARTITION BY n.work
    ORDER BY
      n.tokens_per_s_per_chip DESC NULLS LAST,
      n.tokens_per_s_per_user * n.batch_size / n.chips DESC NULLS LAST,
      n.name,
      run_id
  ) AS place,
  n.layers, n.batch_size, n.backend, n.device_kind, n.chips, n.ttft_ms,
  g.ttft_low_ms, -- Low end of its range, of a predicted run.
  g.ttft_high_ms, -- High end.
  n.tpot_ms, n.tokens_per_s_per_user,
  1e3 / g.tpot_high_ms AS user_low, -- Low end of its range.
  1e3 / g.tpot_low_ms AS user_high, -- High end.
  n.tokens_per_s_per_chip, -- Output tokens of all sequences per second and chip.
  n.batch_size * n.output_length * 1e3
  / ((g.ttft_high_ms + (n.output_length - 1) * g.tpot_high_ms) * n.chips) AS chip_low, -- Low end of its range.
  n.batch_size * n.output_length * 1e3
  / ((g.ttft_low_ms + (n.output_length - 1) * g.tpot_low_ms) * n.chips) AS chip_high, -- High end.
  -- Price of a million output tokens with their prompts, at tokens_per_s_per_chip; NULL if a chip's price is unknown.
  c.usd_per_h * 1e6 / (3.6e3 * n.tokens_per_s_per_chip) AS usd_per_million_tokens,
  c.usd_per_h AS usd_per_chip_hour, -- Price of a chip for an hour; NULL if unknown.
  n.memory_bytes, -- Memory that a predicted run needs on a device.
  n.capacity_bytes, -- Memory that the device has.
  -- The run fits in that memory; NULL where one of the two is not known, as in recorded runs.
  n.memory_bytes <= n.capacity_bytes AS is_fitting,
  -- On the Pareto front: no other fitting run of the workload is better in one of the two rates and at least as good in
  -- the other. NULL where a rate is not known, or the run does not fit.
  CASE
    WHEN n.tokens_per_s_per_user IS NOT NULL AND n.tokens_per_s_per_chip IS NOT NULL AND v.run_id IS NOT NULL
      THEN b.is_beaten IS NULL
  END AS is_on_front
FROM named AS n
LEFT JOIN ranges AS g USING (run_id)
LEFT JOIN prices AS c USING (run_id)
LEFT JOIN rivals AS v USING (run_id)
LEFT JOIN beaten AS b USING (run_id)
