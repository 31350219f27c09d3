/*---
metric: copy_overhead
version: 1
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: overhead
requires: SELECT w.run_id FROM models.copy_windows AS w
description: >
  Share of a phase in which a device copies and does not compute: time in the windows of copies that no op covers which is
  neither communication nor a copy, over the time of the phase's steps, all devices together. The window of an
  asynchronous copy lasts from its start half to the end of its done half. Each moment counts once and for the step it is
  in; in a capture without steps the time is from a device's first op to the end of its last, and phase is NULL.
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none, and in a capture without steps.
  overhead: Exposed copy time over the time of the phase.
  exposed_ms: Exposed copy time of all devices.
  time_ms: Time of the phase of all devices.
  devices: Devices that ran the phase.
changed: First version.
ccl_bench: memory_transfer_overhead
---*/
WITH points AS (
  SELECT
    cs.run_id AS run_id,
    cs.device_id AS device_id,
    cs.start_ps AS at_ps,
    1 AS copies,
    0 AS computes,
    CAST(NULL AS BIGINT) AS step_start_ps,
    CAST(NULL AS BIGINT) AS step_until_ps
  FROM models.copy_windows AS cs
  UNION ALL
  SELECT
    ce.run_id AS run_id,
    ce.device_id AS device_id,
    ce.end_ps AS at_ps,
    -1 AS copies,
    0 AS computes,
    CAST(NULL AS BIGINT) AS step_start_ps,
    CAST(NULL AS BIGINT) AS step_until_ps
  FROM models.copy_windows AS ce
  UNION ALL
  SELECT
    os.run_id AS run_id,
    os.device_id AS device_id,
    os.start_ps AS at_ps,
    0 AS copies,
    1 AS computes,
    CAST(NULL AS BIGINT) AS step_start_ps,
    CAST(NULL AS BIGINT) AS step_until_ps
  FROM models.leaf_ops AS os
  WHERE os.is_compute
  UNION ALL
  SELECT
    oe.run_id AS run_id,
    oe.device_id AS device_id,
    oe.end_ps AS at_ps,
    0 AS copies,
    -1 AS computes,
    CAST(NULL AS BIGINT) AS step_start_ps,
    CAST(NULL AS BIGINT) AS step_until_ps
  FROM models.leaf_ops AS oe
  WHERE oe.is_compute
  UNION ALL
  SELECT
    ss.run_id AS run_id,
    ss.device_id AS device_id,
    ss.start_ps AS at_ps,
    0 AS copies,
    0 AS computes,
    ss.start_ps AS step_start_ps,
    ss.until_ps AS step_until_ps
  FROM models.steps AS ss
  WHERE ss.clock = 'device'
  UNION ALL
  SELECT
    se.run_id AS run_id,
    se.device_id AS device_id,
    se.until_ps AS at_ps,
    0 AS copies,
    0 AS computes,
    CAST(NULL AS BIGINT) AS step_start_ps,
    CAST(NULL AS BIGINT) AS step_until_ps
  FROM models.steps AS se
  WHERE se.clock = 'device'
),

moments AS (
  SELECT
    p.run_id AS run_id,
    p.device_id AS device_id,
    p.at_ps AS at_ps,
    CAST(SUM(p.copies) AS BIGINT) AS copies,
    CAST(SUM(p.computes) AS BIGINT) AS computes,
    MAX(p.step_start_ps) AS step_start_ps,
    MAX(p.step_until_ps) AS step_until_ps
  FROM points AS p
  GROUP BY p.run_id, p.device_id, p.at_ps
),

swept AS (
  SELECT
    m.run_id AS run_id,
    m.device_id AS device_id,
    m.at_ps AS start_ps,
    LEAD(m.at_ps) OVER (PARTITION BY m.run_id, m.device_id ORDER BY m.at_ps) AS end_ps,
    SUM(m.copies) OVER (
      PARTITION BY m.run_id, m.device_id ORDER BY m.at_ps ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS copies,
    SUM(m.computes) OVER (
      PARTITION BY m.run_id, m.device_id ORDER BY m.at_ps ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS computes,
    MAX(m.step_start_ps) OVER (
      PARTITION BY m.run_id, m.device_id ORDER BY m.at_ps ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS step_start_ps,
    MAX(m.step_until_ps) OVER (
      PARTITION BY m.run_id, m.device_id ORDER BY m.at_ps ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS step_until_ps
  FROM moments AS m
),

placed AS (
  SELECT
    e.run_id AS run_id,
    e.device_id AS device_id,
    e.end_ps - e.start_ps AS exposed_ps,
    CASE WHEN e.start_ps < e.step_until_ps THEN e.step_start_ps ELSE NULL END AS step_start_ps
  FROM swept AS e
  WHERE e.copies > 0 AND e.computes = 0 AND e.end_ps > e.start_ps
),

exposed AS (
  SELECT
    x.run_id AS run_id,
    x.device_id AS device_id,
    s.phase AS phase,
    s.start_ps IS NOT NULL AS is_in_step,
    CAST(SUM(x.exposed_ps) AS BIGINT) AS exposed_ps
  FROM placed AS x
  LEFT JOIN models.steps AS s
    ON x.run_id = s.run_id AND x.device_id = s.device_id AND x.step_start_ps = s.start_ps AND s.clock = 'device'
  GROUP BY x.run_id, x.device_id, s.phase, s.start_ps IS NOT NULL
),

copying AS (
  SELECT w.run_id AS run_id
  FROM models.copy_windows AS w
  GROUP BY w.run_id
)

SELECT
  d.run_id AS run_id,
  d.phase AS phase,
  CAST(SUM(COALESCE(t.exposed_ps, 0)) AS DOUBLE) / CAST(SUM(d.span_ps) AS DOUBLE) AS overhead,
  CAST(SUM(COALESCE(t.exposed_ps, 0)) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS exposed_ms,
  CAST(SUM(d.span_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS time_ms,
  COUNT(*) AS devices
FROM models.device_phases AS d
INNER JOIN copying AS k ON d.run_id = k.run_id
LEFT JOIN exposed AS t
  ON
    d.run_id = t.run_id AND d.device_id = t.device_id AND t.is_in_step = (d.steps IS NOT NULL)
    AND COALESCE(d.phase, '') = COALESCE(t.phase, '')
GROUP BY d.run_id, d.phase
HAVING SUM(d.span_ps) > 0
