/*---
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: fraction
ranges: {fraction: [0, 1], max_fraction: [0, 1]}
needs: [timed, any_collective]
description: >
  Share of a phase in which a device communicates and computes nothing: exposed communication over the time of the
  phase's steps. The value is the mean over devices.
notes: >
  A step lasts from its start to the start of the next. The last step counts only in a phase that has no other
  (models.timed_spans). Every device has the same weight; one without communication counts with 0. The share of each
  device is computed to one part in 10^15.
ccl_bench: communication_fraction
---*/
WITH communicating AS (
  SELECT run_id
  FROM main.collectives
  GROUP BY run_id
),

exposed AS (
  SELECT run_id, device_id, phase, SUM(exposed_added_ps) AS exposed_ps
  FROM models.timed_collectives
  GROUP BY run_id, device_id, phase
),

shares AS (
  SELECT
    run_id, t.phase, t.is_last,
    COALESCE(x.exposed_ps, 0) / t.span_ps AS share,
    CAST(FLOOR(COALESCE(x.exposed_ps, 0) / t.span_ps * 1e15 + 5e-1) AS BIGINT) AS units
  FROM models.timed_phases AS t
  INNER JOIN communicating USING (run_id)
  LEFT JOIN exposed AS x ON t.run_id = x.run_id AND t.device_id = x.device_id AND t.phase IS NOT DISTINCT FROM x.phase
)

SELECT
  run_id, phase,
  SUM(units) / COUNT(*) / 1e15 AS fraction, -- Exposed communication over the time of the phase, mean over devices.
  CASE WHEN COUNT(*) FILTER (WHERE is_last) > 0 THEN 'upper' END AS bound,
  MIN(share) AS min_fraction, -- The lowest of a device.
  MAX(share) AS max_fraction, -- The highest of a device.
  -- Speed-up of the phase without exposed communication and the waiting in it, by Amdahl's law: 1 / (1 - fraction);
  -- NULL if the phase consists of exposed communication alone.
  1 / NULLIF(1 - SUM(units) / COUNT(*) / 1e15, 0) AS speedup_limit,
  COUNT(*) AS devices -- Devices that ran the phase.
FROM shares
GROUP BY run_id, phase
