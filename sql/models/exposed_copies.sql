/*---
model: exposed_copies
description: >
  The windows of copies with the time in which the device copies and does not compute. Each moment counts once, for the
  window that covers it first in order of start. A window belongs to the step in which it starts, and one that starts
  between two steps to the step before it, which lasts until the next begins.
columns:
  run_id: The run.
  event_id: The copy, or its start.
  device_id: The device.
  phase: Phase of the step; NULL for a step of none, and outside of steps.
  is_in_step: Whether it belongs to a step.
  exposed_ps: Time in the window that neither an earlier window nor an op that is neither communication nor a copy covers.
---*/
WITH devices AS (
  SELECT
    g.run_id AS run_id,
    g.device_id AS device_id,
    g.is_serial AS is_serial
  FROM models.op_order AS g
),

copies AS (
  SELECT
    c.run_id AS run_id,
    c.event_id AS event_id,
    c.device_id AS device_id,
    c.phase AS phase,
    c.step AS step,
    c.start_ps AS start_ps,
    c.end_ps AS end_ps,
    c.start_compute_ps AS start_compute_ps,
    c.end_compute_ps AS end_compute_ps
  FROM models.copy_windows AS c
),

-- where ops may overlap: the compute before each end of a window is that of the ops before it without what is still to come
both_ends AS (
  SELECT
    s.run_id AS run_id,
    s.device_id AS device_id,
    s.start_ps AS at_ps
  FROM copies AS s
  INNER JOIN devices AS ds ON s.run_id = ds.run_id AND s.device_id = ds.device_id
  WHERE NOT ds.is_serial
  UNION ALL
  SELECT
    e.run_id AS run_id,
    e.device_id AS device_id,
    e.end_ps AS at_ps
  FROM copies AS e
  INNER JOIN devices AS de ON e.run_id = de.run_id AND e.device_id = de.device_id
  WHERE NOT de.is_serial
),

ends AS (
  SELECT
    b.run_id AS run_id,
    b.device_id AS device_id,
    b.at_ps AS at_ps
  FROM both_ends AS b
  GROUP BY b.run_id, b.device_id, b.at_ps
),

marks AS (
  SELECT
    o.run_id AS run_id,
    o.device_id AS device_id,
    o.start_ps AS at_ps,
    o.event_id AS event_id,
    o.end_ps AS end_ps
  FROM models.leaf_ops AS o
  INNER JOIN devices AS d ON o.run_id = d.run_id AND o.device_id = d.device_id
  WHERE o.is_compute AND NOT d.is_serial
  UNION ALL
  SELECT
    p.run_id AS run_id,
    p.device_id AS device_id,
    p.at_ps AS at_ps,
    CAST(-1 AS BIGINT) AS event_id,
    CAST(NULL AS BIGINT) AS end_ps
  FROM ends AS p
),

reached AS (
  SELECT
    m.run_id AS run_id,
    m.device_id AS device_id,
    m.at_ps AS at_ps,
    m.event_id AS event_id,
    m.end_ps AS end_ps,
    MAX(m.end_ps) OVER (
      PARTITION BY m.run_id, m.device_id ORDER BY m.at_ps, m.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS until_ps
  FROM marks AS m
),

summed AS (
  SELECT
    r.run_id AS run_id,
    r.device_id AS device_id,
    r.at_ps AS at_ps,
    r.event_id AS event_id,
    r.until_ps AS until_ps,
    SUM(
      CASE
        WHEN r.end_ps IS NULL THEN 0 ELSE GREATEST(r.end_ps - GREATEST(r.at_ps, COALESCE(r.until_ps, r.at_ps)), 0)
      END
    ) OVER (
      PARTITION BY r.run_id, r.device_id ORDER BY r.at_ps, r.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS begun_ps
  FROM reached AS r
),

computed AS (
  SELECT
    u.run_id AS run_id,
    u.device_id AS device_id,
    u.at_ps AS at_ps,
    CAST(u.begun_ps - GREATEST(COALESCE(u.until_ps, u.at_ps) - u.at_ps, 0) AS BIGINT) AS compute_ps
  FROM summed AS u
  WHERE u.event_id = -1
),

-- the clock of time without compute never runs backwards: what a window adds to the windows before it is read on it
windows AS (
  SELECT
    w.run_id AS run_id,
    w.event_id AS event_id,
    w.device_id AS device_id,
    w.phase AS phase,
    w.step AS step,
    w.start_ps AS start_ps,
    w.start_ps - COALESCE(cs.compute_ps, w.start_compute_ps, 0) AS start_other_ps,
    w.end_ps - COALESCE(ce.compute_ps, w.end_compute_ps, 0) AS end_other_ps
  FROM copies AS w
  LEFT JOIN computed AS cs ON w.run_id = cs.run_id AND w.device_id = cs.device_id AND w.start_ps = cs.at_ps
  LEFT JOIN computed AS ce ON w.run_id = ce.run_id AND w.device_id = ce.device_id AND w.end_ps = ce.at_ps
),

followed AS (
  SELECT
    f.run_id AS run_id,
    f.event_id AS event_id,
    f.device_id AS device_id,
    f.phase AS phase,
    f.step AS step,
    f.start_ps AS start_ps,
    f.start_other_ps AS start_other_ps,
    f.end_other_ps AS end_other_ps,
    MAX(f.end_other_ps) OVER (
      PARTITION BY f.run_id, f.device_id ORDER BY f.start_ps, f.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS until_other_ps
  FROM windows AS f
)

SELECT
  x.run_id AS run_id,
  x.event_id AS event_id,
  x.device_id AS device_id,
  x.phase AS phase,
  TRUE AS is_in_step,
  GREATEST(x.end_other_ps - GREATEST(x.start_other_ps, COALESCE(x.until_other_ps, x.start_other_ps)), 0) AS exposed_ps
FROM followed AS x
WHERE x.step IS NOT NULL
UNION ALL
SELECT
  y.run_id AS run_id,
  y.event_id AS event_id,
  y.device_id AS device_id,
  t.phase AS phase,
  t.start_ps IS NOT NULL AS is_in_step,
  GREATEST(y.end_other_ps - GREATEST(y.start_other_ps, COALESCE(y.until_other_ps, y.start_other_ps)), 0) AS exposed_ps
FROM followed AS y
LEFT JOIN models.steps AS t
  ON
    y.run_id = t.run_id AND y.device_id = t.device_id AND t.clock = 'device'
    AND y.start_ps >= t.start_ps AND y.start_ps < t.until_ps
WHERE y.step IS NULL
