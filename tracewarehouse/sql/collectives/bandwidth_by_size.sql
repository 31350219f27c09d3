/*---
parameters: [run]
reads_runs: [run]
description: >
  Bus bandwidth of a run's collectives against the bytes that a device sends, by kind and axis. Rows are the measured
  sizes, the curve of Hockney's fit, and the peak of the links.
notes: >
  The curve has 25 sizes between the smallest and the largest; the peak stands at both ends. Only executions count
  whose ranks are all in the capture. Percentiles are by nearest rank.
---*/
WITH instances AS (
  SELECT
    kind, axis, bus_bytes, transfer_ps,
    CUME_DIST() OVER (PARTITION BY kind, axis, bus_bytes ORDER BY transfer_ps) AS quantile
  FROM models.collective_instances
  WHERE run_id = run AND NOT is_partial AND bus_bytes > 0 AND transfer_ps > 0
),

measured AS (
  SELECT
    kind, axis, bus_bytes,
    COUNT(*) AS executions,
    bus_bytes * 1e3 / MIN(transfer_ps) FILTER (WHERE quantile >= 0.5) AS gbps,
    bus_bytes * 1e3 / MIN(transfer_ps) FILTER (WHERE quantile >= 0.9) AS slow_gbps,
    bus_bytes * 1e3 / MIN(transfer_ps) FILTER (WHERE quantile >= 0.1) AS fast_gbps
  FROM instances
  GROUP BY kind, axis, bus_bytes
),

ranges AS (
  SELECT kind, axis, MIN(bus_bytes) AS smallest, MAX(bus_bytes) AS largest
  FROM measured
  GROUP BY kind, axis
),

sizes AS (
  SELECT kind, axis, smallest * POW(largest / smallest, UNNEST(RANGE(0, 25)) / 24.0) AS bus_bytes
  FROM ranges
),

fits AS (
  SELECT *
  FROM metrics.hockney
  WHERE run_id = run
),

fitted AS (
  SELECT kind, axis, s.bus_bytes, f.latency_us + s.bus_bytes / (1e3 * f.bandwidth_gbps) AS transfer_us
  FROM sizes AS s
  INNER JOIN fits AS f USING (kind, axis)
),

ends AS (
  SELECT UNNEST([MIN(bus_bytes), MAX(bus_bytes)]) AS bus_bytes
  FROM measured
),

links AS (
  SELECT kind, axis, link, peak_gbps
  FROM models.collective_links
  WHERE run_id = run
),

peaks AS (
  SELECT link, MIN(peak_gbps) AS gbps
  FROM links
  WHERE peak_gbps > 0
  GROUP BY link
)

SELECT
  'measured' AS what, -- measured, fit, or peak of the links.
  m.kind, -- Kind of collective; NULL for the peak.
  m.axis, -- Mesh axes of its groups; NULL for the peak.
  CAST(m.bus_bytes AS DOUBLE) AS bus_bytes, -- Bytes that a device sends.
  m.gbps, -- Bandwidth of the median execution, of the fit, or of the links.
  m.slow_gbps, -- Bandwidth of the 90th percentile of the times; NULL unless measured.
  m.fast_gbps, -- Bandwidth of the 10th percentile of the times; NULL unless measured.
  m.executions, -- Executions; NULL unless measured.
  l.link -- Class of the links that carry them: die, ici, nvlink or fabric, or mixed; NULL where not known.
FROM measured AS m
LEFT JOIN links AS l ON m.kind = l.kind AND m.axis = l.axis
UNION ALL
SELECT
  'fit' AS what, kind, axis, bus_bytes, bus_bytes / (1e3 * transfer_us) AS gbps,
  NULL AS slow_gbps, NULL AS fast_gbps, NULL AS executions, NULL AS link
FROM fitted
WHERE transfer_us > 0
UNION ALL
SELECT
  'peak of the links' AS what, NULL AS kind, NULL AS axis, e.bus_bytes, p.gbps,
  NULL AS slow_gbps, NULL AS fast_gbps, NULL AS executions, p.link
FROM ends AS e
CROSS JOIN peaks AS p
WHERE e.bus_bytes IS NOT NULL AND p.gbps IS NOT NULL
