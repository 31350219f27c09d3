/*---
status: experimental
unit: ratio
polarity: none
scope: warehouse
grain: [run_id, predicted_run_id, phase, op_kind, variant]
value: p50
needs: [recorded, device_ops, matrix_peak]
description: >
  Measured over predicted time of the ops that a recorded run and a predicted one have in common, by kind of op. Two ops
  are the same if their opcodes, types, shapes and memory spaces are equal. Above 1 the predicted time is too short.
notes: >
  A row counts instructions of the recorded run. Its time is the mean over its executions; a collective's execution
  counts with its shortest rank. The predicted time is the mean over all equal ops of the predicted run. Halves of
  asynchronous ops are left out. Only runs on chips with the same peak are compared, and none on chips that do not exist
  (what-if), nor kernels whose times were given or recorded. The metric compares runs, so it is not stored with a run.
---*/
WITH chips AS ( -- by their peak in tens of TFLOP/s: a kind of chip has several names
  SELECT run_id, CAST(FLOOR(MIN(peak_flops_per_s) / 1e13 + 5e-1) AS BIGINT) AS peak
  FROM main.devices
  GROUP BY run_id
),

what_if AS (
  SELECT run_id
  FROM main.predictions
  WHERE ici_factor <> 1 OR hbm_factor <> 1
  GROUP BY run_id
),

times AS (
  SELECT t.*, r.origin, c.peak
  FROM models.signed_times AS t
  INNER JOIN main.runs AS r USING (run_id)
  INNER JOIN chips AS c USING (run_id)
  LEFT JOIN what_if AS w USING (run_id)
  WHERE w.run_id IS NULL
),

predicted AS (
  SELECT run_id, peak, signature, SUM(time_ps) AS time_ps, SUM(timed_ops) AS ops
  FROM times
  WHERE origin = 'predicted'
  GROUP BY run_id, peak, signature
),

names AS (
  SELECT run_id, name, signature
  FROM times
  WHERE origin = 'predicted'
  GROUP BY run_id, name, signature
),

-- the kinds of ops of each recorded run, with what has no counterpart
whole AS (
  SELECT run_id, phase, op_kind, variant, SUM(self_ps) AS self_ps, COUNT(*) AS instructions
  FROM times
  WHERE origin = 'recorded'
  GROUP BY run_id, phase, op_kind, variant
),

points AS (
  SELECT
    r.run_id, p.run_id AS predicted_run_id, r.phase, r.op_kind, r.variant, r.self_ps, r.time_ps,
    n.name IS NOT NULL AS is_same_name,
    CAST(p.time_ps * r.timed_ops // p.ops AS BIGINT) AS predicted_ps,
    CAST(r.time_ps AS DOUBLE) * p.ops / (CAST(r.timed_ops AS DOUBLE) * p.time_ps) AS ratio
  FROM times AS r
  INNER JOIN predicted AS p ON r.peak = p.peak AND r.signature = p.signature
  LEFT JOIN names AS n
    ON p.run_id = n.run_id AND r.name = n.name AND r.signature = n.signature
  WHERE r.origin = 'recorded' AND r.time_ps > 0 AND p.time_ps > 0
),

ranked AS (
  SELECT
    *,
    CUME_DIST() OVER (PARTITION BY run_id, predicted_run_id, phase, op_kind, variant ORDER BY ratio) AS quantile
  FROM points
)

SELECT
  k.run_id, -- The recorded run.
  k.predicted_run_id, -- The predicted run.
  k.phase,
  k.op_kind, -- Kind of op, as in models.signed_times.
  k.variant, -- What tells it from others of its kind, as there.
  COUNT(*) AS n, -- Instructions of the recorded run that have a counterpart.
  -- Median of measured over predicted time, over these instructions.
  MIN(k.ratio) FILTER (WHERE k.quantile >= 0.5) AS p50,
  MIN(k.ratio) FILTER (WHERE k.quantile >= 0.1) AS p10, -- 10th percentile.
  MIN(k.ratio) FILTER (WHERE k.quantile >= 0.9) AS p90, -- 90th percentile.
  SUM(k.time_ps) / CAST(SUM(k.predicted_ps) AS DOUBLE) AS time_ratio, -- All measured over all predicted time.
  SUM(k.time_ps) / 1e9 AS measured_ms, -- Measured time of all executions; ranks of a collective count once.
  SUM(k.predicted_ps) / 1e9 AS predicted_ms, -- What was predicted for as many executions.
  -- Share of the kind's self time that has a counterpart.
  SUM(k.self_ps) / CAST(MIN(w.self_ps) AS DOUBLE) AS matched_share,
  -- Whether all instructions of this kind are in the predicted run under the same names, as in the same program.
  COUNT(*) FILTER (WHERE k.is_same_name) = MIN(w.instructions) AS is_same_program
FROM ranked AS k
INNER JOIN whole AS w
  ON
    k.run_id = w.run_id AND k.phase IS NOT DISTINCT FROM w.phase AND k.op_kind = w.op_kind
    AND k.variant IS NOT DISTINCT FROM w.variant
GROUP BY k.run_id, k.predicted_run_id, k.phase, k.op_kind, k.variant
