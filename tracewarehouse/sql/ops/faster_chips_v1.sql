/*---
status: stable
unit: "%"
polarity: none
grain: [run_id, phase, resource, factor]
value: saved_percent
ranges: {saved_percent: [0, 100], at_peak_percent: [0, 100], known_share: [0, 1]}
needs: [bounded_ops]
description: >
  How much shorter a phase could be at most if memory or matrix units were faster by a factor: 100 (T - T') / T. T is the
  time of the phase's steps on all devices. T' shortens each op as much as the faster resource shortens its bound under
  the roofline.
notes: >
  The bound of an op is the time that the slowest of memory and matrix units would need for it at its peak
  (models.instruction_bounds). With a faster memory the matrix units may become the bound, so four times the memory may
  save no more than twice. The whole op shortens in proportion. at_peak_percent counts the bound alone and keeps the rest
  of the op, so the true value lies between the two if the costs are right. Ops without a known bound, such as Pallas
  kernels, and collectives keep their time. Each moment counts once; steps are those of models.timed_spans.
---*/
WITH bounded AS (
  SELECT run_id, instruction_id, compute_ps, memory_ps, COALESCE(link_ps, 0) AS link_ps, bound_ps, self_ps
  FROM models.instruction_bounds
  WHERE bound_ps > 0
),

timed AS (
  SELECT o.run_id, o.phase, o.instruction_id, SUM(o.busy_ps) AS busy_ps
  FROM models.leaf_ops AS o
  INNER JOIN models.timed_spans AS s
    ON
      o.run_id = s.run_id AND o.device_id = s.device_id AND o.phase IS NOT DISTINCT FROM s.phase
      AND o.step IS NOT DISTINCT FROM s.step
  WHERE o.op_class <> 'communication'
  GROUP BY o.run_id, o.phase, o.instruction_id
),

known AS (
  SELECT
    run_id, t.phase, t.busy_ps, b.compute_ps, b.memory_ps, b.link_ps, b.bound_ps, f.factor,
    (4 - f.saved_quarters) / 4e0 AS remaining,
    -- Share of the op's time that the bound would take at the peak.
    LEAST(b.bound_ps / b.self_ps, 1) AS attained
  FROM timed AS t
  INNER JOIN bounded AS b USING (run_id, instruction_id)
  INNER JOIN models.speed_factors AS f USING (run_id)
),

shortened AS (
  SELECT
    run_id, phase, factor, busy_ps, attained, 'hbm' AS resource,
    1 - GREATEST(memory_ps * remaining, compute_ps, link_ps) / bound_ps AS saved
  FROM known
  UNION ALL
  SELECT
    run_id, phase, factor, busy_ps, attained, 'compute' AS resource,
    1 - GREATEST(memory_ps, compute_ps * remaining, link_ps) / bound_ps AS saved
  FROM known
),

rounded AS (
  SELECT
    run_id, phase, factor, resource, busy_ps,
    CAST(FLOOR(1000 * busy_ps * saved + 5e-1) AS BIGINT) AS saved_fs,
    CAST(FLOOR(1000 * busy_ps * saved * attained + 5e-1) AS BIGINT) AS at_peak_fs
  FROM shortened
),

summed AS (
  SELECT
    run_id, phase, factor, resource,
    SUM(saved_fs) AS saved_fs,
    SUM(at_peak_fs) AS at_peak_fs,
    SUM(busy_ps) AS known_ps
  FROM rounded
  GROUP BY run_id, phase, factor, resource
),

phases AS (
  SELECT run_id, phase, SUM(span_ps) AS span_ps
  FROM models.timed_phases
  GROUP BY run_id, phase
)

SELECT
  s.run_id, s.phase,
  s.resource, -- hbm or compute.
  s.factor, -- How many times faster it is - 2, 4 or infinite.
  s.saved_fs / (p.span_ps * 10) AS saved_percent, -- Share of the time saved at most.
  'upper' AS bound,
  s.at_peak_fs / (p.span_ps * 10) AS at_peak_percent, -- Share saved if the rest of each op stays.
  s.saved_fs / 1e12 AS saved_ms, -- Time saved on all devices.
  p.span_ps / 1e9 AS time_ms, -- Time of the phase, of all devices together.
  s.known_ps / p.span_ps AS known_share -- Share of the time in ops whose bound is known.
FROM summed AS s
INNER JOIN phases AS p ON s.run_id = p.run_id AND s.phase IS NOT DISTINCT FROM p.phase
