/*---
status: experimental
unit: us
polarity: lower_is_better
grain: [run_id, program, class, axis, what]
value: value_us
needs: [microbenchmark_programs]
description: >
  Times that the programs of the experiment calibrate show, of links, products, memories, attention kernels and the
  host. The median counts, and the 10th and 90th percentile are its spread.
notes: >
  A program is named jit_micro.<kind>.<class>.<what>. An execution of a collective shows the shortest time over its
  ranks. A chain of fusions shows its inner ones, whose operands and results are in the same memory. A program of the
  host shows how long the device was idle before it. The program with one argument also shows its op, a fusion in HBM.
  Any other program shows its longest op. A collective is named as it ran: the compiler may have chosen another kind
  than the program asks for. Percentiles are by nearest rank.
---*/
WITH ops AS (
  SELECT
    run_id, device_id, module, execution, self_ps, idle_before_ps,
    REGEXP_EXTRACT(module, '^jit_micro[.]([a-z]+)[.].*$', 1) AS kind,
    ROW_NUMBER() OVER (PARTITION BY run_id, device_id, execution ORDER BY start_ps, event_id) AS place,
    ROW_NUMBER() OVER (PARTITION BY run_id, device_id, execution ORDER BY start_ps DESC, event_id DESC) AS from_end,
    DENSE_RANK() OVER (PARTITION BY run_id, device_id, module ORDER BY execution) AS turn
  FROM models.leaf_ops
  WHERE module LIKE 'jit_micro.%'
),

shown AS (
  SELECT run_id, device_id, module, kind, self_ps AS time_ps
  FROM ops
  WHERE kind = 'fusion' AND place > 1 AND from_end > 1
  UNION ALL
  SELECT run_id, device_id, module, kind, idle_before_ps AS time_ps
  FROM ops
  WHERE kind = 'host' AND place = 1 AND turn > 1 AND idle_before_ps IS NOT NULL
  UNION ALL
  SELECT run_id, device_id, 'jit_micro.fusion.hbm.8x128' AS module, 'fusion' AS kind, self_ps AS time_ps
  FROM ops
  WHERE module = 'jit_micro.host.arguments.1'
  UNION ALL
  SELECT run_id, device_id, module, kind, MAX(self_ps) AS time_ps
  FROM ops
  WHERE kind NOT IN ('fusion', 'host', 'collective')
  GROUP BY run_id, device_id, module, execution, kind
),

times AS (
  SELECT
    run_id, device_id, module AS program, kind,
    REGEXP_EXTRACT(module, '^jit_micro[.][a-z]+[.]([^.]*)[.].*$', 1) AS class,
    CAST(NULL AS VARCHAR) AS axis,
    REGEXP_EXTRACT(module, '^jit_micro[.][a-z]+[.][^.]*[.](.*)$', 1) AS what,
    time_ps
  FROM shown
  UNION ALL
  SELECT
    run_id,
    MIN(c.device_id) AS device_id,
    MIN(i.module) AS program,
    'collective' AS kind,
    MIN(c.kind) AS class,
    MIN(c.axis) AS axis,
    CAST(MAX(c.message_bytes) AS VARCHAR) AS what,
    MIN(c.end_ps - c.start_ps) AS time_ps
  FROM main.collectives AS c
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  WHERE i.module LIKE 'jit_micro.%' AND NOT c.is_partial AND c.window_source <> 'fused op'
  GROUP BY run_id, c.instance
  HAVING MIN(c.end_ps - c.start_ps) IS NOT NULL
),

ranked AS (
  SELECT
    run_id, device_id, program, kind, class, axis, what, time_ps,
    CUME_DIST() OVER (PARTITION BY run_id, program, class, axis, what ORDER BY time_ps) AS quantile
  FROM times
),

spread AS (
  SELECT
    run_id, program, kind, class, axis, what,
    MIN(device_id) AS device_id,
    MIN(time_ps) FILTER (WHERE quantile >= 0.5) AS median_ps,
    MIN(time_ps) FILTER (WHERE quantile >= 0.1) AS low_ps,
    MIN(time_ps) FILTER (WHERE quantile >= 0.9) AS high_ps,
    COUNT(*) AS samples
  FROM ranked
  GROUP BY run_id, program, kind, class, axis, what
),

sized AS (
  SELECT
    *,
    -- operations of a product of m x k and k x n, and of causal attention
    CASE
      WHEN kind = 'product'
        THEN
          2 * CAST(REGEXP_EXTRACT(what, '^([0-9]+)x[0-9]+x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x([0-9]+)x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x[0-9]+x([0-9]+)$', 1) AS BIGINT)
      -- two products over the tokens up to each, which are half of all
      WHEN class IN ('flash', 'ragged-prompt')
        THEN
          2 * CAST(REGEXP_EXTRACT(what, '^([0-9]+)x[0-9]+x[0-9]+x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x([0-9]+)x[0-9]+x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x[0-9]+x([0-9]+)x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x[0-9]+x([0-9]+)x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x[0-9]+x[0-9]+x([0-9]+)$', 1) AS BIGINT)
    END AS flops,
    -- bytes that a copy, or a fusion of one operand in float32, reads and writes; the keys and values in bf16
    CASE
      WHEN class IN ('paged', 'ragged-token')
        THEN
          4 * CAST(REGEXP_EXTRACT(what, '^([0-9]+)x[0-9]+x[0-9]+x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x([0-9]+)x[0-9]+x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x[0-9]+x([0-9]+)x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x[0-9]+x[0-9]+x([0-9]+)$', 1) AS BIGINT)
      WHEN kind = 'copy' THEN 2 * CAST(what AS BIGINT)
      WHEN kind = 'fusion'
        THEN
          8 * CAST(REGEXP_EXTRACT(what, '^([0-9]+)x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x([0-9]+)$', 1) AS BIGINT)
    END AS bytes
  FROM spread
)

SELECT
  run_id, s.program,
  s.kind, -- collective, product, fusion, copy, attention or host.
  -- Of collectives the kind that ran, of products the type, of fusions and copies the memory; the attention kernel.
  s.class,
  s.axis,
  -- Bytes of a collective's message or of a copy, rows x inner length x columns of a product, shape of a fusion,
  -- sequences x heads x tokens x width of attention (over pages of decode steps, heads of keys), or arguments of a
  -- program.
  s.what,
  d.kind AS chip, -- Kind of the device.
  s.median_ps / 1e6 AS value_us, -- Median time.
  s.low_ps / 1e6 AS low_us, -- 10th percentile.
  s.high_ps / 1e6 AS high_us, -- 90th percentile.
  s.samples AS n, -- Number of times, over all devices or groups.
  -- Of a product, and of attention of prompts: its rate at the median.
  CAST(s.flops AS DOUBLE) / NULLIF(s.median_ps, 0) AS tflops_per_s,
  -- Of a copy or fusion bytes read and written, of pages keys and values; at the median.
  s.bytes * 1000 / NULLIF(s.median_ps, 0) AS gbps,
  -- Of copies, fusions and pages in HBM: gbps over the peak; NULL where the peak is not known.
  CASE
    WHEN s.class IN ('hbm', 'paged', 'ragged-token')
      THEN s.bytes * 1000 / NULLIF(s.median_ps, 0) / NULLIF(d.peak_hbm_gbps, 0)
  END AS hbm_share,
  -- Of products in bf16 and of attention of prompts: tflops_per_s over the peak; NULL where the peak is not known.
  CASE
    WHEN s.class IN ('bfloat16', 'flash', 'ragged-prompt')
      THEN CAST(s.flops AS DOUBLE) * 1e12 / NULLIF(s.median_ps, 0) / NULLIF(d.peak_flops_per_s, 0)
  END AS peak_share
FROM sized AS s
LEFT JOIN main.devices AS d USING (run_id, device_id)
