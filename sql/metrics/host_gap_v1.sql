/*---
metric: host_gap
version: 1
status: deprecated
deprecated: >
  Also sums the picoseconds between successive ops; host_gap version 2 counts pauses of more than a microsecond.
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: gap_ratio
requires: SELECT s.run_id FROM models.steps AS s WHERE s.clock = 'device'
description: >
  Share of the steps' time in which no device of the run executes an op, so that all wait for the host. A step of the run
  lasts from the first device's start to the first start of the next step, the last to its latest end. Devices of several
  hosts are compared on the run's clock and so only as well as that aligns them. A capture without steps has no row.
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none.
  gap_ratio: Share of the time without an op on any device.
  gap_ms: That time, over all steps.
  time_ms: Time of the steps.
  steps: Steps of the phase.
changed: First version.
---*/
WITH marks AS (
  SELECT
    o.run_id AS run_id,
    o.start_ps AS start_ps,
    o.end_ps AS end_ps,
    o.event_id AS event_id,
    CAST(NULL AS BIGINT) AS step_start_ps,
    CAST(NULL AS BIGINT) AS step_until_ps
  FROM models.leaf_ops AS o
  UNION ALL
  SELECT
    s.run_id AS run_id,
    s.start_ps AS start_ps,
    s.start_ps AS end_ps,
    CAST(-1 AS BIGINT) AS event_id,
    s.start_ps AS step_start_ps,
    s.until_ps AS step_until_ps
  FROM models.run_steps AS s
  UNION ALL
  SELECT
    e.run_id AS run_id,
    e.until_ps AS start_ps,
    e.until_ps AS end_ps,
    CAST(-2 AS BIGINT) AS event_id,
    CAST(NULL AS BIGINT) AS step_start_ps,
    CAST(NULL AS BIGINT) AS step_until_ps
  FROM models.run_steps AS e
),

gaps AS (
  SELECT
    m.run_id AS run_id,
    m.start_ps AS end_ps,
    MAX(m.end_ps) OVER (
      PARTITION BY m.run_id ORDER BY m.start_ps, m.event_id, m.end_ps ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS start_ps,
    MAX(m.step_start_ps) OVER (
      PARTITION BY m.run_id ORDER BY m.start_ps, m.event_id, m.end_ps ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS step_start_ps,
    MAX(m.step_until_ps) OVER (
      PARTITION BY m.run_id ORDER BY m.start_ps, m.event_id, m.end_ps ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS step_until_ps
  FROM marks AS m
),

counted AS (
  SELECT
    g.run_id AS run_id,
    g.step_start_ps AS step_start_ps,
    CAST(SUM(g.end_ps - g.start_ps) AS BIGINT) AS gap_ps
  FROM gaps AS g
  WHERE g.end_ps > g.start_ps AND g.start_ps < g.step_until_ps
  GROUP BY g.run_id, g.step_start_ps
),

running AS (
  SELECT r.run_id AS run_id
  FROM models.leaf_ops AS r
  GROUP BY r.run_id
)

SELECT
  t.run_id AS run_id,
  t.phase AS phase,
  CAST(SUM(COALESCE(c.gap_ps, 0)) AS DOUBLE) / CAST(SUM(t.until_ps - t.start_ps) AS DOUBLE) AS gap_ratio,
  CAST(SUM(COALESCE(c.gap_ps, 0)) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS gap_ms,
  CAST(SUM(t.until_ps - t.start_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS time_ms,
  COUNT(*) AS steps
FROM models.run_steps AS t
INNER JOIN running AS n ON t.run_id = n.run_id
LEFT JOIN counted AS c ON t.run_id = c.run_id AND t.start_ps = c.step_start_ps
GROUP BY t.run_id, t.phase
HAVING SUM(t.until_ps - t.start_ps) > 0
