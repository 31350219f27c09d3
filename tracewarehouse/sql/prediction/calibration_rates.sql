/*---
model: calibration_rates
description: >
  Rates of a chip that a run of the experiment calibrate shows without a prediction beside it, as rows of the table of
  calibrations. Range and number of measurements are those of the microbenchmark.
notes: >
  The largest copy shows the rate of transfers, the smallest fusions show the time of an op that moves hardly anything,
  and the longest prompt shows the rate of flash attention. Rates of products and links need a prediction of the same
  program.
---*/
WITH ranked AS (
  SELECT
    *,
    ROW_NUMBER() OVER (PARTITION BY run_id, kind, class ORDER BY value_us DESC, what) AS from_longest,
    ROW_NUMBER() OVER (PARTITION BY run_id, kind, class ORDER BY value_us, what) AS from_shortest,
    -- the profiler calls v5e and v6e light ones
    CASE
      WHEN LOWER(chip) = 'tpu v5 lite' THEN 'v5e'
      WHEN LOWER(chip) = 'tpu v6 lite' THEN 'v6e'
      WHEN LOWER(chip) = 'tpu7x' THEN 'tpu7x'
      ELSE REGEXP_EXTRACT(LOWER(chip), '^tpu (v[0-9][a-z]?)$', 1)
    END AS generation
  FROM models.microbenchmark_rates
  WHERE chip LIKE 'TPU%'
),

rates AS (
  SELECT
    run_id, generation, 'hbm' AS class, 'stream_share' AS what, n, hbm_share AS rate,
    hbm_share * value_us / high_us AS low, hbm_share * value_us / NULLIF(low_us, 0) AS high
  FROM ranked
  WHERE kind = 'copy' AND from_longest = 1 AND value_us > 0
  UNION ALL
  SELECT
    run_id, generation, 'small_op' AS class, 'vmem_ns' AS what, n, value_us * 1e3 AS rate, low_us * 1e3 AS low,
    high_us * 1e3 AS high
  FROM ranked
  WHERE kind = 'fusion' AND class = 'vmem' AND from_shortest = 1
  UNION ALL
  SELECT
    run_id, generation, 'small_op' AS class, 'hbm_us' AS what, n, value_us AS rate, low_us AS low, high_us AS high
  FROM ranked
  WHERE kind = 'fusion' AND class = 'hbm' AND from_shortest = 1
  UNION ALL
  SELECT
    run_id, generation, 'flash_attention' AS class, 'share' AS what, n, peak_share AS rate,
    peak_share * value_us / high_us AS low, peak_share * value_us / NULLIF(low_us, 0) AS high
  FROM ranked
  WHERE class = 'flash' AND from_longest = 1 AND value_us > 0
)

SELECT
  r.run_id,
  'machine' AS kind, -- Kind of the row.
  r.generation AS chip, -- Generation, as topologies name it.
  r.class, -- What the rate is of.
  r.what, -- Its name, with its unit.
  r.rate AS "value", -- Median.
  r.low, -- What nine in ten reach: the rate at the 90th percentile of a time, or the 10th percentile of the rate.
  r.high, -- What one in ten reaches.
  r.n, -- Measurements.
  u.name AS source -- Name of the run.
FROM rates AS r
INNER JOIN main.runs AS u USING (run_id)
WHERE r.generation <> '' AND r.rate > 0 AND r.low > 0 AND r.high IS NOT NULL
