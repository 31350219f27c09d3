/*---
model: device_busy
description: >
  Time in which a device was busy, per step. An op between two steps, such as a sampling program, belongs to the step
  before it, which lasts until the next begins.
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
WITH placed AS (
  SELECT
    c.run_id AS run_id,
    c.device_id AS device_id,
    c.step_start_ps AS step_start_ps,
    MIN(c.start_ps) AS first_start_ps,
    MAX(c.end_ps) AS last_end_ps,
    COUNT(*) AS ops,
    CAST(SUM(c.busy_ps) AS BIGINT) AS busy_ps,
    CAST(SUM(c.compute_ps) AS BIGINT) AS compute_ps
  FROM models.swept_ops AS c
  GROUP BY c.run_id, c.device_id, c.step_start_ps
),

parts AS (
  SELECT
    p.run_id AS run_id,
    p.device_id AS device_id,
    s.phase AS phase,
    s.step AS step,
    p.first_start_ps AS first_start_ps,
    p.last_end_ps AS last_end_ps,
    p.ops AS ops,
    p.busy_ps AS busy_ps,
    p.compute_ps AS compute_ps
  FROM placed AS p
  LEFT JOIN models.steps AS s
    ON p.run_id = s.run_id AND p.device_id = s.device_id AND p.step_start_ps = s.start_ps AND s.clock = 'device'
  UNION ALL
  SELECT
    n.run_id AS run_id,
    n.device_id AS device_id,
    t.phase AS phase,
    t.step AS step,
    n.start_ps AS first_start_ps,
    n.end_ps AS last_end_ps,
    CAST(1 AS BIGINT) AS ops,
    n.end_ps - n.start_ps AS busy_ps,
    CASE WHEN n.is_compute THEN n.end_ps - n.start_ps ELSE 0 END AS compute_ps
  FROM models.leaf_ops AS n
  INNER JOIN models.op_order AS r ON n.run_id = r.run_id AND n.device_id = r.device_id
  LEFT JOIN models.steps AS t
    ON
      n.run_id = t.run_id AND n.device_id = t.device_id AND t.clock = 'device'
      AND n.start_ps >= t.start_ps AND n.start_ps < t.until_ps
  WHERE r.is_serial AND n.step IS NULL
  UNION ALL
  SELECT
    e.run_id AS run_id,
    e.device_id AS device_id,
    e.phase AS phase,
    e.step AS step,
    e.first_start_ps AS first_start_ps,
    e.last_end_ps AS last_end_ps,
    e.ops AS ops,
    e.time_ps AS busy_ps,
    e.compute_ps AS compute_ps
  FROM models.execution_ops AS e
  INNER JOIN models.op_order AS o ON e.run_id = o.run_id AND e.device_id = o.device_id
  WHERE o.is_serial AND e.step IS NOT NULL
)

SELECT
  b.run_id AS run_id,
  b.device_id AS device_id,
  b.phase AS phase,
  b.step AS step,
  MIN(b.first_start_ps) AS first_start_ps,
  MAX(b.last_end_ps) AS last_end_ps,
  CAST(SUM(b.ops) AS BIGINT) AS ops,
  CAST(SUM(b.busy_ps) AS BIGINT) AS busy_ps,
  CAST(SUM(b.compute_ps) AS BIGINT) AS compute_ps
FROM parts AS b
GROUP BY b.run_id, b.device_id, b.phase, b.step
