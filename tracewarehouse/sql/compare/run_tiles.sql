/*---
parameters: [runs]
reads_runs: [runs]
description: >
  The ten main numbers of runs, as `tw show` prints them and the head of a report draws them. A number without data
  has one row without a value.
notes: >
  Step time, idle time and exposed communication of steps come from macros.step_shares, as the bar of a step does.
  Without such steps they come from the metrics. Latencies have a row per clock. What devices do in a step has a row per
  phase, and one row for all that they do outside of steps. Doubles are added in a fixed order, so that a sum is the
  same each time.
---*/
WITH numbers (position, metric, name) AS (
  VALUES
  (0, 'ttft', 'TTFT'),
  (1, 'tpot', 'TPOT'),
  (2, 'throughput', 'Throughput'),
  (3, 'step_time', 'Step time'),
  (4, 'mfu', 'MFU'),
  (5, 'hbm_bandwidth', 'Memory bandwidth'),
  (6, 'device_idle', 'Device idle'),
  (7, 'exposed_communication', 'Exposed communication'),
  (8, 'collective_count', 'Collectives per step'),
  (9, 'traffic_volume', 'Traffic per step')
),

shares AS (
  SELECT run_id, NULLIF(phase, '') AS phase, part, share, mean_ms, steps
  FROM macros.step_shares(runs)
),

stepped AS (
  SELECT
    run_id, phase,
    SUM(mean_ms ORDER BY mean_ms) AS step_ms,
    MAX(steps) AS steps,
    COALESCE(SUM(share) FILTER (WHERE part = 'idle'), 0) AS idle,
    COALESCE(SUM(mean_ms) FILTER (WHERE part = 'exposed communication'), 0) AS exposed_ms
  FROM shares
  GROUP BY run_id, phase
),

timed AS (
  SELECT
    run_id, phase,
    SUM(step_time_ms ORDER BY step_time_ms) / COUNT(step_time_ms) AS step_ms,
    COUNT(step_time_ms) AS steps
  FROM metrics.step_time
  WHERE run_id IN (SELECT UNNEST(runs)) AND step_time_ms IS NOT NULL
  GROUP BY run_id, phase
),

running AS (
  SELECT run_id, phase, COUNT(*) AS devices, SUM(idle_ratio ORDER BY idle_ratio) AS idle_ratios
  FROM metrics.device_idle
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id, phase
),

moved AS (
  SELECT run_id, phase, SUM(message_bytes_per_step ORDER BY message_bytes_per_step) AS bytes
  FROM metrics.traffic_volume
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id, phase
),

found AS (
  SELECT
    run_id, 'ttft' AS metric, clock AS part, ttft_ms AS value, 'ms' AS unit,
    prefill_steps || ' prefill step' || CASE WHEN prefill_steps > 1 THEN 's' ELSE '' END AS detail
  FROM metrics.ttft
  WHERE run_id IN (SELECT UNNEST(runs))
  UNION ALL
  SELECT
    run_id, 'tpot' AS metric, clock AS part, tpot_ms AS value, 'ms' AS unit,
    'p50 ' || ROUND(p50_ms, 3) || ', p90 ' || ROUND(p90_ms, 3) AS detail
  FROM metrics.tpot
  WHERE run_id IN (SELECT UNNEST(runs))
  UNION ALL
  SELECT
    run_id, 'throughput' AS metric, '' AS part, output_tokens_per_s AS value, 'tokens/s' AS unit,
    output_tokens || ' tokens, ' || clock || ' clock' AS detail
  FROM metrics.throughput
  WHERE run_id IN (SELECT UNNEST(runs))
  UNION ALL
  SELECT
    t.run_id, 'step_time' AS metric, t.phase AS part,
    COALESCE(s.step_ms, t.step_ms) AS value,
    'ms' AS unit,
    CASE WHEN s.steps IS NULL THEN '' ELSE 'mean over devices, ' END
    || CASE COALESCE(s.steps, t.steps) WHEN 1 THEN 'one step' ELSE COALESCE(s.steps, t.steps) || ' steps' END AS detail
  FROM timed AS t
  LEFT JOIN stepped AS s ON t.run_id = s.run_id AND t.phase IS NOT DISTINCT FROM s.phase
  UNION ALL
  SELECT
    run_id, 'mfu' AS metric, phase AS part,
    100 * mfu AS value,
    '%' AS unit, 'of the peak of all devices' AS detail
  FROM metrics.mfu
  WHERE run_id IN (SELECT UNNEST(runs))
  UNION ALL
  SELECT
    run_id, 'hbm_bandwidth' AS metric, phase AS part,
    SUM(bytes) / SUM(busy_ms ORDER BY busy_ms) / 1e6 AS value,
    'GB/s' AS unit, 'of a device while it is busy' AS detail
  FROM metrics.hbm_bandwidth
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id, phase
  UNION ALL
  SELECT
    r.run_id, 'device_idle' AS metric, r.phase AS part,
    100 * COALESCE(s.idle, r.idle_ratios / r.devices) AS value,
    '%' AS unit, 'mean over devices' AS detail
  FROM running AS r
  LEFT JOIN stepped AS s ON r.run_id = s.run_id AND r.phase IS NOT DISTINCT FROM s.phase
  UNION ALL
  SELECT
    e.run_id, 'exposed_communication' AS metric, e.phase AS part,
    COALESCE(
      ANY_VALUE(s.exposed_ms),
      SUM(e.exposed_ms ORDER BY e.exposed_ms) / COALESCE(ANY_VALUE(r.devices), COUNT(DISTINCT e.device_id))
    ) AS value,
    'ms' AS unit,
    CASE WHEN e.phase = 'outside' THEN 'mean over devices' ELSE 'per step, mean over devices' END AS detail
  FROM metrics.exposed_communication AS e
  LEFT JOIN running AS r ON e.run_id = r.run_id AND e.phase IS NOT DISTINCT FROM r.phase
  LEFT JOIN stepped AS s ON e.run_id = s.run_id AND e.phase IS NOT DISTINCT FROM s.phase
  WHERE e.run_id IN (SELECT UNNEST(runs))
  GROUP BY e.run_id, e.phase
  UNION ALL
  SELECT
    run_id, 'collective_count' AS metric, phase AS part,
    SUM(executions_per_step ORDER BY executions_per_step) AS value,
    '' AS unit,
    STRING_AGG(
      kind || CASE axis WHEN 'unknown' THEN ' (axis not known) ' ELSE ' ' || axis || ' ' END
      || ROUND(executions_per_step, 2), ', ' ORDER BY kind, axis
    ) AS detail
  FROM metrics.collective_count
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id, phase
  UNION ALL
  SELECT
    run_id, 'traffic_volume' AS metric, phase AS part, CASE
      WHEN bytes >= 1e9 THEN bytes / 1e9
      WHEN bytes >= 1e6 THEN bytes / 1e6
      WHEN bytes >= 1e3 THEN bytes / 1e3
      ELSE bytes
    END AS value,
    CASE WHEN bytes >= 1e9 THEN 'GB' WHEN bytes >= 1e6 THEN 'MB' WHEN bytes >= 1e3 THEN 'kB' ELSE 'bytes' END AS unit,
    'message bytes of a device' AS detail
  FROM moved
)

SELECT
  r.run_id,
  n.position, -- Position of the number among the ten, from 0.
  n.metric, -- The metric that it comes from.
  CASE WHEN f.part = 'outside' THEN REPLACE(n.name, ' per step', '') ELSE n.name END AS name, -- Name of the number.
  COALESCE(f.part, '') AS part, -- The clock or the phase; empty if there is only one row.
  f.value, -- The number.
  COALESCE(f.unit, '') AS unit, -- Unit of the number; empty for a count.
  f.detail -- A line that says more.
FROM main.runs AS r
CROSS JOIN numbers AS n
LEFT JOIN found AS f ON r.run_id = f.run_id AND n.metric = f.metric AND f.value IS NOT NULL
WHERE r.run_id IN (SELECT UNNEST(runs))
