/*---
metric: host_gap
version: 2
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: gap_ratio
requires: SELECT s.run_id FROM models.steps AS s WHERE s.clock = 'device'
description: >
  Share of the steps' time in which no device of the run executes an op, so that all wait for the host. Between two ops of
  a device up to a microsecond does not count: that is how its times are rounded and its ops are issued, and it is nobody's
  waiting. A step of the run lasts from the first device's start to the first start of the next step, the last to its latest
  end. Devices of several hosts are compared on the run's clock and so only as well as that aligns them. A capture without
  steps has no row.
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none.
  gap_ratio: Share of the time without an op on any device.
  gap_ms: That time, over all steps.
  time_ms: Time of the steps.
  threshold_us: Shorter times between two ops of a device are not taken for a pause of it.
  steps: Steps of the phase.
changed: >
  The pauses of each device that are longer than a microsecond, and what they have in common; version 1 also sums the
  picoseconds between successive ops, which on a single device are all there is between two launches.
---*/
WITH marks AS (
  SELECT
    b.run_id AS run_id,
    b.start_ps AS at_ps,
    1 AS pausing,
    CAST(NULL AS BIGINT) AS step_start_ps,
    CAST(NULL AS BIGINT) AS step_until_ps
  FROM models.device_pauses AS b
  UNION ALL
  SELECT
    e.run_id AS run_id,
    e.end_ps AS at_ps,
    -1 AS pausing,
    CAST(NULL AS BIGINT) AS step_start_ps,
    CAST(NULL AS BIGINT) AS step_until_ps
  FROM models.device_pauses AS e
  UNION ALL
  SELECT
    s.run_id AS run_id,
    s.start_ps AS at_ps,
    0 AS pausing,
    s.start_ps AS step_start_ps,
    s.until_ps AS step_until_ps
  FROM models.run_steps AS s
  UNION ALL
  SELECT
    u.run_id AS run_id,
    u.until_ps AS at_ps,
    0 AS pausing,
    CAST(NULL AS BIGINT) AS step_start_ps,
    CAST(NULL AS BIGINT) AS step_until_ps
  FROM models.run_steps AS u
),

-- of marks at one time the last has a length, and knows of all of them
swept AS (
  SELECT
    m.run_id AS run_id,
    m.at_ps AS start_ps,
    LEAD(m.at_ps) OVER (PARTITION BY m.run_id ORDER BY m.at_ps, m.pausing, m.step_start_ps) AS end_ps,
    SUM(m.pausing) OVER (
      PARTITION BY m.run_id ORDER BY m.at_ps, m.pausing, m.step_start_ps
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS pausing,
    MAX(m.step_start_ps) OVER (
      PARTITION BY m.run_id ORDER BY m.at_ps, m.pausing, m.step_start_ps
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS step_start_ps,
    MAX(m.step_until_ps) OVER (
      PARTITION BY m.run_id ORDER BY m.at_ps, m.pausing, m.step_start_ps
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS step_until_ps
  FROM marks AS m
),

running AS (
  SELECT
    r.run_id AS run_id,
    COUNT(*) AS devices
  FROM models.op_order AS r
  GROUP BY r.run_id
),

counted AS (
  SELECT
    g.run_id AS run_id,
    g.step_start_ps AS step_start_ps,
    CAST(SUM(g.end_ps - g.start_ps) AS BIGINT) AS gap_ps
  FROM swept AS g
  INNER JOIN running AS d ON g.run_id = d.run_id AND g.pausing = d.devices
  WHERE g.end_ps > g.start_ps AND g.start_ps < g.step_until_ps
  GROUP BY g.run_id, g.step_start_ps
)

SELECT
  t.run_id AS run_id,
  t.phase AS phase,
  CAST(SUM(COALESCE(c.gap_ps, 0)) AS DOUBLE) / CAST(SUM(t.until_ps - t.start_ps) AS DOUBLE) AS gap_ratio,
  CAST(SUM(COALESCE(c.gap_ps, 0)) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS gap_ms,
  CAST(SUM(t.until_ps - t.start_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS time_ms,
  CAST(1 AS BIGINT) AS threshold_us,
  COUNT(*) AS steps
FROM models.run_steps AS t
INNER JOIN running AS n ON t.run_id = n.run_id
LEFT JOIN counted AS c ON t.run_id = c.run_id AND t.start_ps = c.step_start_ps
GROUP BY t.run_id, t.phase
HAVING SUM(t.until_ps - t.start_ps) > 0
