/*---
model: device_gaps
description: >
  Times of more than a microsecond inside a step, between its first op and its last, in which a device runs no op; one row
  per gap.
columns:
  run_id: The run.
  device_id: The device.
  phase: Phase; NULL for a step of none.
  step: The step.
  event_id: The op that ends the gap.
  start_ps: Start of the gap, the latest end of the ops before it.
  end_ps: End of the gap.
  gap_ps: Length of the gap, end_ps - start_ps.
  next: What ends it - launch (an op of another execution of a program), collective, copy or compute.
---*/
WITH devices AS (
  SELECT
    g.run_id AS run_id,
    g.device_id AS device_id,
    g.is_serial AS is_serial
  FROM models.op_order AS g
),

begun AS (
  SELECT
    b.run_id AS run_id,
    b.device_id AS device_id,
    b.execution AS execution,
    MIN(b.first_start_ps) AS first_start_ps
  FROM models.execution_ops AS b
  GROUP BY b.run_id, b.device_id, b.execution
),

timed AS (
  SELECT
    o.run_id AS run_id,
    o.device_id AS device_id,
    o.phase AS phase,
    o.step AS step,
    o.event_id AS event_id,
    o.start_ps AS start_ps,
    o.execution AS execution,
    o.is_communication AS is_communication,
    o.is_copy AS is_copy,
    MAX(o.end_ps) OVER (
      PARTITION BY o.run_id, o.device_id, o.phase, o.step ORDER BY o.start_ps, o.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS busy_until_ps,
    LAG(o.execution) OVER (
      PARTITION BY o.run_id, o.device_id, o.phase, o.step ORDER BY o.start_ps, o.event_id
    ) AS previous_execution
  FROM models.leaf_ops AS o
  INNER JOIN devices AS d ON o.run_id = d.run_id AND o.device_id = d.device_id
  WHERE o.step IS NOT NULL AND NOT d.is_serial
)

SELECT
  t.run_id AS run_id,
  t.device_id AS device_id,
  t.phase AS phase,
  t.step AS step,
  t.event_id AS event_id,
  t.busy_until_ps AS start_ps,
  t.start_ps AS end_ps,
  t.start_ps - t.busy_until_ps AS gap_ps,
  CASE
    WHEN t.execution <> COALESCE(t.previous_execution, -1) THEN 'launch'
    WHEN t.is_communication THEN 'collective'
    WHEN t.is_copy THEN 'copy'
    ELSE 'compute'
  END AS next
FROM timed AS t
WHERE t.start_ps - t.busy_until_ps > 1000000
UNION ALL
SELECT
  n.run_id AS run_id,
  n.device_id AS device_id,
  n.phase AS phase,
  n.step AS step,
  n.event_id AS event_id,
  n.start_ps AS start_ps,
  n.end_ps AS end_ps,
  n.end_ps - n.start_ps AS gap_ps,
  CASE
    WHEN n.end_ps = x.first_start_ps THEN 'launch'
    WHEN n.is_communication THEN 'collective'
    WHEN n.is_copy THEN 'copy'
    ELSE 'compute'
  END AS next
FROM models.device_pauses AS n
INNER JOIN devices AS e ON n.run_id = e.run_id AND n.device_id = e.device_id
INNER JOIN models.step_ops AS f
  ON
    n.run_id = f.run_id AND n.device_id = f.device_id AND n.step = f.step
    AND COALESCE(n.phase, '') = COALESCE(f.phase, '')
LEFT JOIN begun AS x
  ON n.run_id = x.run_id AND n.device_id = x.device_id AND n.execution = x.execution
WHERE e.is_serial AND n.end_ps > f.first_start_ps
