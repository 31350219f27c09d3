/*---
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: gap_ratio
ranges: {gap_ratio: [0, 1]}
needs: [recorded, device_steps]
description: Share of the steps' time in which no device of the run executes an op. All devices then wait for the host.
notes: >
  A gap of up to a microsecond between two ops of a device does not count, because rounded times and the issuing of
  ops cause such gaps. A step of the run lasts from the first device's start to the first start of the next step. The
  last step counts only in a phase that has no other; it then lasts to its latest end. Devices of several hosts are
  compared on the run's clock, so the result is only as exact as the alignment of the clocks. A capture without steps
  has no row.
---*/
WITH marks AS (
  SELECT run_id, start_ps AS at_ps, 1 AS pausing, NULL AS step_start_ps, NULL AS step_until_ps
  FROM models.device_pauses
  UNION ALL
  SELECT run_id, end_ps AS at_ps, -1 AS pausing, NULL AS step_start_ps, NULL AS step_until_ps
  FROM models.device_pauses
  UNION ALL
  SELECT run_id, start_ps AS at_ps, 0 AS pausing, start_ps AS step_start_ps, until_ps AS step_until_ps
  FROM models.run_steps
  UNION ALL
  SELECT run_id, until_ps AS at_ps, 0 AS pausing, NULL AS step_start_ps, NULL AS step_until_ps
  FROM models.run_steps
),

-- of several marks at one time, the last has a length and counts all of them
swept AS (
  SELECT
    run_id, at_ps AS start_ps,
    LEAD(at_ps) OVER (PARTITION BY run_id ORDER BY at_ps, pausing, step_start_ps) AS end_ps,
    SUM(pausing) OVER so_far AS pausing,
    MAX(step_start_ps) OVER so_far AS step_start_ps,
    MAX(step_until_ps) OVER so_far AS step_until_ps
  FROM marks
  WINDOW so_far AS (
    PARTITION BY run_id ORDER BY at_ps, pausing, step_start_ps ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  )
),

running AS (
  SELECT run_id, COUNT(DISTINCT device_id) AS devices
  FROM models.execution_ops
  GROUP BY run_id
),

counted AS (
  SELECT g.run_id, g.step_start_ps, SUM(g.end_ps - g.start_ps) AS gap_ps
  FROM swept AS g
  INNER JOIN running AS d ON g.run_id = d.run_id AND g.pausing = d.devices
  WHERE g.end_ps > g.start_ps AND g.start_ps < g.step_until_ps
  GROUP BY g.run_id, g.step_start_ps
)

SELECT
  run_id, t.phase,
  -- Share of the time without an op on any device.
  SUM(COALESCE(c.gap_ps, 0)) / SUM(t.until_ps - t.start_ps) AS gap_ratio,
  CASE WHEN COUNT(*) FILTER (WHERE t.is_last) > 0 THEN 'lower' END AS bound,
  SUM(COALESCE(c.gap_ps, 0)) / 1e9 AS gap_ms, -- Time without an op on any device, over all steps.
  SUM(t.until_ps - t.start_ps) / 1e9 AS time_ms, -- Time of the steps.
  CAST(1 AS BIGINT) AS threshold_us, -- Shorter times between two ops of a device are no pause.
  COUNT(*) AS steps -- Steps of the phase that count.
FROM models.run_steps AS t
INNER JOIN running USING (run_id)
LEFT JOIN counted AS c ON t.run_id = c.run_id AND t.start_ps = c.step_start_ps
LEFT JOIN models.predicted_runs AS g USING (run_id)
WHERE t.is_timed AND g.is_predicted IS NULL
GROUP BY run_id, t.phase
HAVING SUM(t.until_ps - t.start_ps) > 0
