/*---
parameters: [run]
reads_runs: [run]
description: >
  Numbers of a run that a row of CCL-Bench has beside its own metrics: three of our metrics, as one number each, and facts
  of its card. The metrics are those of decode, or else of mixed steps, or of prefill, or of steps without a phase.
---*/
WITH steps AS (
  SELECT phase, COUNT(*) AS steps
  FROM models.run_steps
  WHERE run_id = run
  GROUP BY phase
),

chosen AS (
  SELECT MIN(phase) AS phase, MAX(steps) FILTER (WHERE phase = 'decode') AS decode_steps
  FROM steps
  WHERE phase IN ('prefill', 'mixed', 'decode') -- decode is the first of these names, and mixed the second
),

hosts AS (
  SELECT MAX(peak_ici_gbps) AS chip_ici_gbps, COUNT(*) AS devices
  FROM main.devices
  WHERE run_id = run
  GROUP BY host
),

chips AS (
  SELECT MAX(chip_ici_gbps) AS chip_ici_gbps, MAX(devices) AS devices_per_host
  FROM hosts
),

exposed AS (
  SELECT phase, AVG(fraction) * 100 AS share
  FROM metrics.communication_fraction
  WHERE run_id = run
  GROUP BY phase
),

transfers AS (
  SELECT phase, SUM(bus_gbps * transfer_ms) / NULLIF(SUM(transfer_ms), 0) AS bus_gbps
  FROM metrics.collective_transfer
  WHERE run_id = run
  GROUP BY phase
),

waits AS (
  SELECT phase, AVG(wait_ms) AS wait_ms
  FROM metrics.sync_wait
  WHERE run_id = run
  GROUP BY phase
)

SELECT
  c.phase, -- Phase whose steps the three metrics cover; NULL for steps without a phase.
  COALESCE(c.decode_steps, 0) AS decode_steps, -- Steps of decode.
  h.devices_per_host, -- Devices of the host with the most.
  h.chip_ici_gbps, -- Peak of a chip's links in each direction.
  -- Share of a step in which a device communicates and computes nothing, in percent, mean over devices.
  e.share AS exposed_communication_share,
  -- Bus bandwidth in GB/s: bytes of all collectives over the sum of their times, each the shortest over its ranks.
  t.bus_gbps AS collective_bus_bandwidth,
  -- Time in ms per step that a device spends in collectives beyond the shortest of their ranks, mean over devices.
  w.wait_ms / s.steps AS collective_sync_wait
FROM chosen AS c
CROSS JOIN chips AS h
LEFT JOIN steps AS s ON c.phase IS NOT DISTINCT FROM s.phase
LEFT JOIN exposed AS e ON c.phase IS NOT DISTINCT FROM e.phase
LEFT JOIN transfers AS t ON c.phase IS NOT DISTINCT FROM t.phase
LEFT JOIN waits AS w ON c.phase IS NOT DISTINCT FROM w.phase
