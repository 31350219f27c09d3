/*---
model: op_order
description: How the leaf ops of each device follow one another.
columns:
  run_id: The run.
  device_id: The device.
  ops: Number of leaf ops.
  first_start_ps: Start of the first op.
  last_end_ps: Latest end of an op.
  is_serial: >
    Ingest knows of each op how long the device idled before it, so that none overlaps another, and no two steps of the
    device have one number. Sums over such a device need no sweep over its ops in order.
---*/
WITH counted AS (
  SELECT
    o.run_id AS run_id,
    o.device_id AS device_id,
    CAST(SUM(o.ops) AS BIGINT) AS ops,
    MIN(o.first_start_ps) AS first_start_ps,
    MAX(o.last_end_ps) AS last_end_ps,
    CAST(SUM(o.ordered_ops) AS BIGINT) AS ordered_ops,
    MIN(o.least_idle_ps) AS least_idle_ps
  FROM models.execution_ops AS o
  GROUP BY o.run_id, o.device_id
),

numbered_twice AS (
  SELECT
    s.run_id AS run_id,
    s.device_id AS device_id
  FROM models.steps AS s
  WHERE s.clock = 'device'
  GROUP BY s.run_id, s.device_id
  HAVING COUNT(*) > COUNT(DISTINCT s.step)
)

SELECT
  c.run_id AS run_id,
  c.device_id AS device_id,
  c.ops AS ops,
  c.first_start_ps AS first_start_ps,
  c.last_end_ps AS last_end_ps,
  c.ordered_ops + 1 >= c.ops AND COALESCE(c.least_idle_ps, 0) >= 0 AND t.run_id IS NULL AS is_serial
FROM counted AS c
LEFT JOIN numbered_twice AS t ON c.run_id = t.run_id AND c.device_id = t.device_id
