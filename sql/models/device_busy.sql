/*---
model: device_busy
description: >
  Time in which a device was busy, per step. Each moment counts once, for the op that covers it first in order of start:
  the length of a union is the sum over ops of what reaches beyond all ends before. An op between two steps, such as a
  sampling program, belongs to the step before it, which lasts until the next begins.
columns:
  run_id: The run.
  device_id: The device.
  phase: Phase; NULL for a step of none, and outside of steps.
  step: Step; NULL before the first, after the last, and in a capture without steps.
  first_start_ps: Start of the first op.
  last_end_ps: Latest end of an op.
  ops: Number of leaf ops that start in it.
  busy_ps: Union of all leaf ops.
  compute_ps: Union of the leaf ops that are neither communication nor copies.
---*/
WITH timed AS (
  SELECT
    o.run_id AS run_id,
    o.device_id AS device_id,
    o.event_id AS event_id,
    o.start_ps AS start_ps,
    o.end_ps AS end_ps,
    o.is_compute AS is_compute,
    CAST(NULL AS BIGINT) AS step_start_ps,
    CAST(NULL AS BIGINT) AS step_until_ps
  FROM models.leaf_ops AS o
  UNION ALL
  SELECT
    s.run_id AS run_id,
    s.device_id AS device_id,
    CAST(-1 AS BIGINT) AS event_id,
    s.start_ps AS start_ps,
    s.start_ps AS end_ps,
    FALSE AS is_compute,
    s.start_ps AS step_start_ps,
    s.until_ps AS step_until_ps
  FROM models.steps AS s
  WHERE s.clock = 'device'
),

placed AS (
  SELECT
    t.run_id AS run_id,
    t.device_id AS device_id,
    t.event_id AS event_id,
    t.start_ps AS start_ps,
    t.end_ps AS end_ps,
    t.is_compute AS is_compute,
    MAX(t.end_ps) OVER (
      PARTITION BY t.run_id, t.device_id ORDER BY t.start_ps, t.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS busy_until_ps,
    MAX(CASE WHEN t.is_compute THEN t.end_ps ELSE NULL END) OVER (
      PARTITION BY t.run_id, t.device_id ORDER BY t.start_ps, t.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS compute_until_ps,
    MAX(t.step_start_ps) OVER (
      PARTITION BY t.run_id, t.device_id ORDER BY t.start_ps, t.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS step_start_ps,
    MAX(t.step_until_ps) OVER (
      PARTITION BY t.run_id, t.device_id ORDER BY t.start_ps, t.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS step_until_ps
  FROM timed AS t
),

covered AS (
  SELECT
    p.run_id AS run_id,
    p.device_id AS device_id,
    CASE WHEN p.start_ps < p.step_until_ps THEN p.step_start_ps ELSE NULL END AS step_start_ps,
    p.start_ps AS start_ps,
    p.end_ps AS end_ps,
    GREATEST(p.end_ps - GREATEST(p.start_ps, COALESCE(p.busy_until_ps, p.start_ps)), 0) AS busy_ps,
    CASE
      WHEN p.is_compute
        THEN GREATEST(p.end_ps - GREATEST(p.start_ps, COALESCE(p.compute_until_ps, p.start_ps)), 0)
      ELSE 0
    END AS compute_ps
  FROM placed AS p
  WHERE p.event_id >= 0
),

summed AS (
  SELECT
    c.run_id AS run_id,
    c.device_id AS device_id,
    c.step_start_ps AS step_start_ps,
    MIN(c.start_ps) AS first_start_ps,
    MAX(c.end_ps) AS last_end_ps,
    COUNT(*) AS ops,
    CAST(SUM(c.busy_ps) AS BIGINT) AS busy_ps,
    CAST(SUM(c.compute_ps) AS BIGINT) AS compute_ps
  FROM covered AS c
  GROUP BY c.run_id, c.device_id, c.step_start_ps
)

SELECT
  b.run_id AS run_id,
  b.device_id AS device_id,
  s.phase AS phase,
  s.step AS step,
  b.first_start_ps AS first_start_ps,
  b.last_end_ps AS last_end_ps,
  b.ops AS ops,
  b.busy_ps AS busy_ps,
  b.compute_ps AS compute_ps
FROM summed AS b
LEFT JOIN models.steps AS s
  ON b.run_id = s.run_id AND b.device_id = s.device_id AND b.step_start_ps = s.start_ps AND s.clock = 'device'
