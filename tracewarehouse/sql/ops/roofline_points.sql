/*---
parameters:
  run: The run, by its id.
  most: The most instructions.
reads_runs: [run]
description: >
  The instructions of metrics.roofline with most self time, and the roof above them: the peak of the memory, the bend, and
  the peak of the matrix units. There is no roof where a peak is not known.
---*/
WITH ops AS (
  SELECT name, category, bound, intensity, flops_per_s, self_us * executions / 1e3 AS self_ms, attained
  FROM metrics.roofline
  WHERE run_id = run AND flops_per_s > 0 AND intensity > 0
  QUALIFY ROW_NUMBER() OVER (ORDER BY self_us * executions DESC, instruction_id) <= most
),

ends AS (
  SELECT LEAST(MIN(intensity), 1) AS low, GREATEST(MAX(intensity), 1000) AS high
  FROM ops
  HAVING COUNT(*) > 0
),

peaks AS (
  SELECT MIN(peak_flops_per_s) AS flops, MIN(peak_hbm_gbps) * 1e9 AS bytes
  FROM main.devices
  WHERE run_id = run
),

roof AS (
  SELECT
    UNNEST([e.low, p.flops / p.bytes, GREATEST(e.high, 2 * p.flops / p.bytes)]) AS intensity, p.flops, p.bytes
  FROM ends AS e
  CROSS JOIN peaks AS p
  WHERE p.flops > 0 AND p.bytes > 0
)

SELECT
  'op' AS what, -- op, or roof.
  name, -- Name of the instruction.
  category, -- The profiler's category.
  bound, -- compute, memory or ici; NULL where the peak is not known.
  intensity, -- Operations per byte.
  flops_per_s, -- Rate of a device.
  self_ms, -- Self time on all devices; NULL for the roof.
  attained -- Share of the bound; NULL where it is not known.
FROM ops
UNION ALL
SELECT
  'roof' AS what, 'roof' AS name, NULL AS category, 'roof' AS bound, intensity,
  LEAST(flops, intensity * bytes) AS flops_per_s, NULL AS self_ms, NULL AS attained
FROM roof
