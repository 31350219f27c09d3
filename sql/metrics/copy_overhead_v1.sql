/*---
metric: copy_overhead
version: 1
status: deprecated
deprecated: >
  Divides a window where the next step begins, unlike an op; copy_overhead version 2 counts it for the step it begins in.
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
WITH marks AS (
  SELECT
    w.run_id AS run_id,
    w.device_id AS device_id,
    w.event_id AS event_id,
    w.start_ps AS start_ps,
    w.end_ps AS end_ps,
    FALSE AS is_compute
  FROM models.copy_windows AS w
  UNION ALL
  SELECT
    o.run_id AS run_id,
    o.device_id AS device_id,
    o.event_id AS event_id,
    o.start_ps AS start_ps,
    o.end_ps AS end_ps,
    TRUE AS is_compute
  FROM models.leaf_ops AS o
  WHERE o.is_compute
),

preceded AS (
  SELECT
    m.run_id AS run_id,
    m.device_id AS device_id,
    m.start_ps AS start_ps,
    m.end_ps AS end_ps,
    m.is_compute AS is_compute,
    MAX(CASE WHEN m.is_compute THEN m.end_ps ELSE NULL END) OVER (
      PARTITION BY m.run_id, m.device_id ORDER BY m.start_ps, m.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS compute_until_ps,
    MAX(CASE WHEN m.is_compute THEN NULL ELSE m.end_ps END) OVER (
      PARTITION BY m.run_id, m.device_id ORDER BY m.start_ps, m.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS copy_until_ps
  FROM marks AS m
),

-- the compute that copies can hide behind: ops that start in a window, and at its start the rest of those before it
computing AS (
  SELECT
    h.run_id AS run_id,
    h.device_id AS device_id,
    h.start_ps AS start_ps,
    CASE WHEN h.is_compute THEN h.end_ps ELSE h.compute_until_ps END AS end_ps
  FROM preceded AS h
  WHERE CASE WHEN h.is_compute THEN h.start_ps < h.copy_until_ps ELSE h.start_ps < h.compute_until_ps END
),

points AS (
  SELECT
    cs.run_id AS run_id,
    cs.device_id AS device_id,
    cs.start_ps AS at_ps,
    1 AS copies,
    0 AS computes,
    CAST(NULL AS BIGINT) AS step_start_ps
  FROM models.copy_windows AS cs
  UNION ALL
  SELECT
    ce.run_id AS run_id,
    ce.device_id AS device_id,
    ce.end_ps AS at_ps,
    -1 AS copies,
    0 AS computes,
    CAST(NULL AS BIGINT) AS step_start_ps
  FROM models.copy_windows AS ce
  UNION ALL
  SELECT
    os.run_id AS run_id,
    os.device_id AS device_id,
    os.start_ps AS at_ps,
    0 AS copies,
    1 AS computes,
    CAST(NULL AS BIGINT) AS step_start_ps
  FROM computing AS os
  UNION ALL
  SELECT
    oe.run_id AS run_id,
    oe.device_id AS device_id,
    oe.end_ps AS at_ps,
    0 AS copies,
    -1 AS computes,
    CAST(NULL AS BIGINT) AS step_start_ps
  FROM computing AS oe
  UNION ALL
  SELECT
    ss.run_id AS run_id,
    ss.device_id AS device_id,
    ss.start_ps AS at_ps,
    0 AS copies,
    0 AS computes,
    ss.start_ps AS step_start_ps
  FROM models.steps AS ss
  WHERE ss.clock = 'device'
  UNION ALL
  SELECT
    se.run_id AS run_id,
    se.device_id AS device_id,
    se.until_ps AS at_ps,
    0 AS copies,
    0 AS computes,
    CAST(NULL AS BIGINT) AS step_start_ps
  FROM models.steps AS se
  WHERE se.clock = 'device'
),

-- of points at one time the last has a length, and knows of all of them
swept AS (
  SELECT
    p.run_id AS run_id,
    p.device_id AS device_id,
    p.at_ps AS start_ps,
    LEAD(p.at_ps) OVER (
      PARTITION BY p.run_id, p.device_id ORDER BY p.at_ps, p.copies, p.computes, p.step_start_ps
    ) AS end_ps,
    SUM(p.copies) OVER (
      PARTITION BY p.run_id, p.device_id ORDER BY p.at_ps, p.copies, p.computes, p.step_start_ps
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS copies,
    SUM(p.computes) OVER (
      PARTITION BY p.run_id, p.device_id ORDER BY p.at_ps, p.copies, p.computes, p.step_start_ps
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS computes,
    MAX(p.step_start_ps) OVER (
      PARTITION BY p.run_id, p.device_id ORDER BY p.at_ps, p.copies, p.computes, p.step_start_ps
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS step_start_ps
  FROM points AS p
),

exposed AS (
  SELECT
    x.run_id AS run_id,
    x.device_id AS device_id,
    s.phase AS phase,
    s.start_ps IS NOT NULL AS is_in_step,
    CAST(SUM(x.end_ps - x.start_ps) AS BIGINT) AS exposed_ps
  FROM swept AS x
  LEFT JOIN models.steps AS s
    ON
      x.run_id = s.run_id AND x.device_id = s.device_id AND x.step_start_ps = s.start_ps AND s.clock = 'device'
      AND x.start_ps < s.until_ps
  WHERE x.copies > 0 AND x.computes = 0 AND x.end_ps > x.start_ps
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
