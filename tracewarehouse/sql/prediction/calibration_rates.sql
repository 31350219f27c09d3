/*---
description: >
  Rates of a chip that a run of the experiment calibrate shows by itself, as rows of the table of calibrations. Range
  and number of measurements are those of the microbenchmark.
notes: >
  The largest copy shows the rate of transfers, the smallest fusions show the time of an op that moves hardly anything,
  the longest prompt shows the rate of flash and ragged attention, and the program with the most arguments shows the
  host's time per step. The time of attention over pages has two terms: reading keys and values at a share of the rate
  of transfers, and a constant for each sequence. Both come from a line through the shortest and the longest contexts.
  Collectives and products need what the compiler says of them, so `tw plan --calibrate` fits those.
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
      WHEN LOWER(chip) = 'tpu v5' THEN 'v5p'
      WHEN LOWER(chip) = 'tpu7x' THEN 'tpu7x'
      ELSE REGEXP_EXTRACT(LOWER(chip), '^tpu (v[0-9][a-z]?)$', 1)
    END AS generation
  FROM metrics.microbenchmarks_v1
  WHERE chip LIKE 'TPU%'
),

paged AS (
  SELECT
    l.run_id, l.generation, CASE WHEN l.class = 'paged' THEN 'paged_attention' ELSE 'ragged_attention' END AS class,
    l.n, l.value_us / l.high_us AS at_high, l.value_us / NULLIF(l.low_us, 0) AS at_low,
    c.hbm_share * l.gbps / l.hbm_share AS stream_gbps,
    s.value_us AS short_us, s.gbps * s.value_us AS short_kb,
    CAST(REGEXP_EXTRACT(s.what, '^([0-9]+)x', 1) AS BIGINT) AS sequences,
    (l.gbps * l.value_us - s.gbps * s.value_us) / (l.value_us - s.value_us) AS gbps
  FROM ranked AS l
  INNER JOIN ranked AS s USING (run_id)
  INNER JOIN ranked AS c USING (run_id)
  WHERE
    l.class IN ('paged', 'ragged-token') AND l.from_longest = 1 AND s.class = l.class AND s.from_shortest = 1
    AND l.value_us > s.value_us AND c.kind = 'copy' AND c.from_longest = 1
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
    run_id, generation, CASE WHEN class = 'flash' THEN 'flash_attention' ELSE 'ragged_attention' END AS class,
    CASE WHEN class = 'flash' THEN 'share' ELSE 'prompt_share' END AS what, n, peak_share AS rate,
    peak_share * value_us / high_us AS low, peak_share * value_us / NULLIF(low_us, 0) AS high
  FROM ranked
  WHERE class IN ('flash', 'ragged-prompt') AND from_longest = 1 AND value_us > 0
  UNION ALL
  SELECT
    run_id, generation, 'host_step' AS class, 'ms' AS what, n, value_us / 1e3 AS rate, low_us / 1e3 AS low,
    high_us / 1e3 AS high
  FROM ranked
  WHERE kind = 'host' AND from_longest = 1
  UNION ALL
  SELECT
    run_id, generation, class, 'share' AS what, n, gbps / stream_gbps AS rate,
    gbps / stream_gbps * at_high AS low, gbps / stream_gbps * at_low AS high
  FROM paged
  UNION ALL
  SELECT
    run_id, generation, class, 'sequence_ns' AS what, n,
    (short_us - short_kb / gbps) * 1e3 / sequences AS rate,
    (short_us - short_kb / gbps) * 1e3 / sequences * at_high AS low,
    (short_us - short_kb / gbps) * 1e3 / sequences * at_low AS high
  FROM paged
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
