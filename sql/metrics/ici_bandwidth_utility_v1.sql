/*---
metric: ici_bandwidth_utility
version: 1
status: stable
unit: "%"
polarity: higher_is_better
grain: [run_id, phase, factor]
value: saved_percent
requires: SELECT run_id FROM main.collectives WHERE NOT is_partial AND run_id NOT IN (SELECT r.run_id FROM main.runs AS r WHERE r.backend = 'gpu')
description: >
  How much shorter a phase would be with faster links: 100 (T - T') / T, T the time of the phase's steps, all devices
  together. In T', the transfer of every collective takes latency + bytes / (factor x bandwidth), but never longer
  than it took. Latency and bandwidth come from models.transfer_fit for its kind and axis; a negative latency counts
  as 0. If the sizes do not allow a fit, the whole transfer counts as bandwidth, which gives an upper bound. Waiting
  for late ranks does not change. Only exposed time can be saved. Collectives with ranks outside the capture do not
  change. GPUs have no such links and no row.
changed: First version.
ccl_bench: scale_up_bw_utility
---*/
WITH factors AS (
  SELECT run_id, '2' AS factor, 2 AS divisor
  FROM main.runs
  UNION ALL
  SELECT run_id, '4' AS factor, 4 AS divisor
  FROM main.runs
  UNION ALL
  SELECT run_id, 'infinite' AS factor, NULL AS divisor
  FROM main.runs
),

timed AS (
  SELECT
    run_id,
    c.device_id,
    c.phase,
    c.exposed_ps,
    i.transfer_ps,
    CASE WHEN f.slope_ps_per_byte > 0 THEN GREATEST(f.intercept_ps, 0) ELSE 0 END AS latency_ps,
    CASE WHEN f.slope_ps_per_byte > 0 THEN f.slope_ps_per_byte * i.bus_bytes ELSE i.transfer_ps END AS byte_ps,
    CASE WHEN f.slope_ps_per_byte > 0 THEN 1 ELSE 0 END AS is_fitted
  FROM main.collectives AS c
  INNER JOIN main.runs AS r USING (run_id)
  INNER JOIN models.collective_instances AS i USING (run_id, instance)
  LEFT JOIN models.transfer_fit AS f ON i.run_id = f.run_id AND i.kind = f.kind AND i.axis = f.axis
  WHERE r.backend <> 'gpu' AND NOT i.is_partial AND i.bus_bytes > 0
),

saved AS (
  SELECT
    run_id,
    t.device_id,
    t.phase,
    a.factor,
    t.is_fitted,
    CAST(
      1000
      * LEAST(t.exposed_ps, GREATEST(t.transfer_ps - t.latency_ps - COALESCE(t.byte_ps / a.divisor, 0), 0)) AS BIGINT
    ) AS saved_fs
  FROM timed AS t
  INNER JOIN factors AS a USING (run_id)
),

summed AS (
  SELECT
    run_id,
    device_id,
    phase,
    factor,
    SUM(saved_fs) AS saved_fs,
    COUNT(*) AS executions,
    SUM(is_fitted) AS fitted_executions
  FROM saved
  GROUP BY run_id, device_id, phase, factor
),

communicating AS (
  SELECT run_id, phase, factor
  FROM summed
  GROUP BY run_id, phase, factor
)

SELECT
  d.run_id, -- The run.
  d.phase, -- Phase; NULL for the steps of none, and in a capture without steps.
  n.factor, -- How many times faster the links are - 2, 4 or infinite.
  SUM(COALESCE(m.saved_fs, 0)) / (SUM(d.span_ps) * 10) AS saved_percent, -- Share of the time saved.
  SUM(COALESCE(m.saved_fs, 0)) / 1e12 AS saved_ms, -- Time saved on all devices.
  SUM(d.span_ps) / 1e9 AS time_ms, -- Time of the phase of all devices.
  CAST(SUM(COALESCE(m.executions, 0)) AS BIGINT) AS executions, -- Executions that are timed anew, on all devices.
  -- Those whose latency and bandwidth are known apart.
  CAST(SUM(COALESCE(m.fitted_executions, 0)) AS BIGINT) AS fitted_executions
FROM models.device_phases AS d
INNER JOIN communicating AS n ON d.run_id = n.run_id AND d.phase IS NOT DISTINCT FROM n.phase
LEFT JOIN summed AS m
  ON d.run_id = m.run_id AND d.device_id = m.device_id AND n.factor = m.factor AND d.phase IS NOT DISTINCT FROM m.phase
GROUP BY d.run_id, d.phase, n.factor
HAVING SUM(d.span_ps) > 0
