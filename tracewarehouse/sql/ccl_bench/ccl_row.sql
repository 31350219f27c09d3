/*---
macro: ccl_row
parameters:
  run: The run, by its id.
description: >
  Numbers of a run that a row of CCL-Bench has beside its own metrics: three of our metrics, as one number each, and facts
  of its card. The metrics are those of decode, or else of prefill, or else of steps without a phase.
---*/
WITH phases AS (
  SELECT
    COUNT(*) FILTER (WHERE phase = 'decode') AS decode_steps,
    MIN(phase) FILTER (WHERE phase IN ('prefill', 'decode')) AS phase -- decode is the first of these names
  FROM models.run_steps
  WHERE run_id = run
),

hosts AS (
  SELECT MAX(peak_ici_gbps) AS chip_ici_gbps, COUNT(*) AS devices
  FROM main.devices
  WHERE run_id = run
  GROUP BY host
)

SELECT
  decode_steps, -- Steps of decode.
  (SELECT MAX(devices) FROM hosts) AS devices_per_host, -- Devices of the host with the most.
  (SELECT MAX(chip_ici_gbps) FROM hosts) AS chip_ici_gbps, -- Peak of a chip's links in each direction.
  -- Share of a step in which a device communicates and computes nothing, in percent, mean over devices.
  (
    SELECT AVG(fraction) * 100
    FROM metrics.communication_fraction AS f
    WHERE f.run_id = run AND f.phase IS NOT DISTINCT FROM p.phase
  ) AS exposed_communication_share,
  -- Bus bandwidth of collectives in GB/s, mean weighted by their transfer time.
  (
    SELECT SUM(bus_gbps * transfer_ms) / NULLIF(SUM(transfer_ms), 0)
    FROM metrics.collective_transfer AS t
    WHERE t.run_id = run AND t.phase IS NOT DISTINCT FROM p.phase
  ) AS collective_bus_bandwidth,
  -- Time in ms per step that a device waits in collectives for later ranks, mean over devices.
  (
    SELECT AVG(wait_ms)
    FROM metrics.sync_wait AS w
    WHERE w.run_id = run AND w.phase IS NOT DISTINCT FROM p.phase
  )
  / (
    SELECT NULLIF(COUNT(*), 0)
    FROM models.run_steps AS s
    WHERE s.run_id = run AND s.phase IS NOT DISTINCT FROM p.phase
  ) AS collective_sync_wait
FROM phases AS p
