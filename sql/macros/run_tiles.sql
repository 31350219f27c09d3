/*---
macro: run_tiles
parameters:
  runs: The runs, as a list of run ids.
description: >
  The main numbers of runs, as the head of a report shows them: a row per clock of the latencies, and per phase of what
  the devices do. A number without data has no row, or no value.
columns:
  run_id: The run.
  position: Place of the number among those of the run, from 0; numbers of several phases share theirs.
  phase: Phase; empty outside of phases, and for the latencies.
  label: What it is.
  value: The number.
  unit: Its unit; empty for a count.
  detail: A line that says more.
---*/
WITH latencies AS (
  SELECT
    run_id,
    0 AS position,
    NULL AS phase,
    'TTFT, ' || clock AS name,
    ttft_ms AS value,
    'ms' AS unit,
    prefill_steps || ' prefill step' || CASE WHEN prefill_steps > 1 THEN 's' ELSE '' END AS detail
  FROM metrics.ttft
  WHERE run_id IN (SELECT UNNEST(runs))
  UNION ALL
  SELECT
    run_id,
    1 AS position,
    NULL AS phase,
    'TPOT, ' || clock AS name,
    tpot_ms AS value,
    'ms' AS unit,
    'p50 ' || ROUND(p50_ms, 3) || ', p90 ' || ROUND(p90_ms, 3) AS detail
  FROM metrics.tpot
  WHERE run_id IN (SELECT UNNEST(runs))
),

counted AS (
  SELECT
    run_id,
    2 AS position,
    phase,
    'Collectives per step' AS name,
    SUM(executions_per_step) AS value,
    '' AS unit,
    STRING_AGG(kind || ' ' || axis || ' ' || ROUND(executions_per_step, 2), ', ' ORDER BY kind, axis) AS detail
  FROM metrics.collective_count
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id, phase
),

moved AS (
  SELECT run_id, phase, SUM(message_bytes_per_step) AS bytes_per_step
  FROM metrics.traffic_volume
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id, phase
),

traffic AS (
  SELECT
    run_id,
    3 AS position,
    phase,
    'Traffic per step' AS name,
    CASE WHEN bytes_per_step >= 1e7 THEN bytes_per_step / 1e6 ELSE bytes_per_step / 1e3 END AS value,
    CASE WHEN bytes_per_step >= 1e7 THEN 'MB' ELSE 'kB' END AS unit,
    'message bytes of a device' AS detail
  FROM moved
),

running AS (
  SELECT run_id, phase, COUNT(*) AS devices, SUM(idle_ratio) AS idle_ratios
  FROM metrics.device_idle
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id, phase
),

exposed AS (
  SELECT
    e.run_id,
    4 AS position,
    e.phase,
    'Exposed communication' AS name,
    SUM(e.exposed_ms) / ANY_VALUE(r.devices) AS value,
    'ms' AS unit,
    'per step, mean over devices' AS detail
  FROM metrics.exposed_communication AS e
  INNER JOIN running AS r ON e.run_id = r.run_id AND e.phase IS NOT DISTINCT FROM r.phase
  GROUP BY e.run_id, e.phase
),

idle AS (
  SELECT
    run_id,
    5 AS position,
    phase,
    'Device idle' AS name,
    100 * idle_ratios / devices AS value,
    '%' AS unit,
    'mean over devices' AS detail
  FROM running
),

tiles AS (
  SELECT * FROM latencies
  UNION ALL
  SELECT * FROM counted
  UNION ALL
  SELECT * FROM traffic
  UNION ALL
  SELECT * FROM exposed
  UNION ALL
  SELECT * FROM idle
)

SELECT
  run_id,
  position,
  COALESCE(phase, '') AS phase,
  name || COALESCE(', ' || phase, '') AS label,
  value,
  unit,
  detail
FROM tiles
