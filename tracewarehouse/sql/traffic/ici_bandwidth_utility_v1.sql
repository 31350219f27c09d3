/*---
metric: ici_bandwidth_utility
version: 1
status: stable
unit: "%"
polarity: none
grain: [run_id, phase, factor]
value: saved_percent
ranges: {saved_percent: [0, 100]}
needs: [recorded, inter_chip_links, fitted_transfers, collectives_in_steps]
description: >
  How much shorter a phase would be with links that are faster by a factor: 100 (T - T') / T. T is the time of the
  phase's steps, all devices together; in T' each collective is shorter by what the faster links save.
notes: >
  A collective is shorter by (1 - 1 / factor) x bytes / bandwidth, but at most by its transfer time without the
  latency, and at most by its exposed time, of which each moment counts once, for the collective whose op runs.
  Waiting for late ranks and the latency do not change; a factor of 1 saves nothing. Steps are those of
  models.timed_spans. Latency and bandwidth of a kind and axis come from models.transfer_fit, if they are within the
  peak of the links; a negative latency counts as 0. Collectives without such a fit, or with ranks outside the
  capture, do not change, so the value is a lower bound if fitted_executions is below executions. A phase without any
  fit has no row; neither has a GPU, which has no such links.
changed: First version.
ccl_bench: scale_up_bw_utility
---*/
WITH fits AS (
  SELECT run_id, kind, axis, link, slope_ps_per_byte, intercept_ps
  FROM models.transfer_fit
  WHERE NOT COALESCE(is_above_peak, FALSE)
),

timed AS (
  SELECT
    run_id, c.device_id, c.phase,
    c.exposed_added_ps AS exposed_ps,
    f.slope_ps_per_byte * i.bus_bytes AS byte_ps,
    GREATEST(i.transfer_ps - GREATEST(f.intercept_ps, 0), 0) AS beyond_latency_ps,
    CASE WHEN f.run_id IS NULL THEN 0 ELSE 1 END AS is_fitted,
    COALESCE(f.link, '') AS link
  FROM models.timed_collectives AS c
  INNER JOIN main.runs AS r USING (run_id)
  INNER JOIN models.collective_instances AS i USING (run_id, instance)
  LEFT JOIN fits AS f ON i.run_id = f.run_id AND i.kind = f.kind AND i.axis = f.axis
  WHERE r.backend <> 'gpu' AND NOT i.is_partial AND i.bus_bytes > 0
),

saved AS (
  SELECT
    run_id, t.device_id, t.phase, a.factor, t.is_fitted, t.link, CASE
      WHEN t.is_fitted = 1
        THEN CAST(
          FLOOR(1000 * LEAST(t.exposed_ps, a.saved_quarters / 4e0 * t.byte_ps, t.beyond_latency_ps) + 5e-1) AS BIGINT
        )
      ELSE 0
    END AS saved_fs
  FROM timed AS t
  INNER JOIN models.faster_links AS a USING (run_id)
),

summed AS (
  SELECT
    run_id, device_id, phase, factor,
    SUM(saved_fs) AS saved_fs,
    COUNT(*) AS executions,
    SUM(is_fitted) AS fitted_executions,
    MIN(link) FILTER (WHERE is_fitted = 1) AS first_link,
    MAX(link) FILTER (WHERE is_fitted = 1) AS last_link
  FROM saved
  GROUP BY run_id, device_id, phase, factor
),

fitted AS (
  SELECT run_id, phase, factor
  FROM summed
  WHERE fitted_executions > 0
  GROUP BY run_id, phase, factor
)

SELECT
  d.run_id, d.phase,
  n.factor, -- How many times faster the links are - 2, 4 or infinite.
  SUM(COALESCE(m.saved_fs, 0)) / (SUM(d.span_ps) * 10) AS saved_percent, -- Share of the time saved.
  SUM(COALESCE(m.saved_fs, 0)) / 1e12 AS saved_ms, -- Time saved on all devices.
  SUM(d.span_ps) / 1e9 AS time_ms, -- Time of the phase, of all devices together.
  CAST(SUM(COALESCE(m.executions, 0)) AS BIGINT) AS executions, -- Executions whose bytes are known, on all devices.
  -- Those whose time changes, because their latency and bandwidth are known.
  CAST(SUM(COALESCE(m.fitted_executions, 0)) AS BIGINT) AS fitted_executions,
  -- Class of the links that are faster: ici or die, or mixed; NULL where not known.
  CASE WHEN MIN(m.first_link) = MAX(m.last_link) THEN NULLIF(MIN(m.first_link), '') ELSE 'mixed' END AS link
FROM models.timed_phases AS d
INNER JOIN fitted AS n ON d.run_id = n.run_id AND d.phase IS NOT DISTINCT FROM n.phase
LEFT JOIN summed AS m
  ON d.run_id = m.run_id AND d.device_id = m.device_id AND n.factor = m.factor AND d.phase IS NOT DISTINCT FROM m.phase
GROUP BY d.run_id, d.phase, n.factor
