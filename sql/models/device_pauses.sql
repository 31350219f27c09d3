/*---
model: device_pauses
description: >
  Times of more than a microsecond in which a device runs no op, over all of the run's steps: between two ops, and from
  the run's first step to the device's first op and from its last op to the end of the run's last step.
columns:
  run_id: The run.
  device_id: The device.
  start_ps: Start of the pause.
  end_ps: End of the pause, exclusive.
  event_id: The op that ends it; NULL before the first op and after the last.
  phase: Phase of that op; NULL outside of phases.
  step: Step of that op; NULL outside of steps.
  execution: Which execution of a program on the device that op is of; NULL where not known.
  is_communication: Whether that op is a collective, or the start or done of one.
  is_copy: Whether it is a copy, or the start or done of an asynchronous op that is no collective.
---*/
WITH devices AS (
  SELECT
    g.run_id AS run_id,
    g.device_id AS device_id,
    g.first_start_ps AS first_start_ps,
    g.last_end_ps AS last_end_ps,
    g.is_serial AS is_serial
  FROM models.op_order AS g
),

spans AS (
  SELECT
    s.run_id AS run_id,
    MIN(s.start_ps) AS start_ps,
    MAX(s.until_ps) AS end_ps
  FROM models.run_steps AS s
  GROUP BY s.run_id
),

swept AS (
  SELECT
    o.run_id AS run_id,
    o.device_id AS device_id,
    MAX(o.end_ps) OVER (
      PARTITION BY o.run_id, o.device_id ORDER BY o.start_ps, o.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS start_ps,
    o.start_ps AS end_ps,
    o.event_id AS event_id,
    o.phase AS phase,
    o.step AS step,
    o.execution AS execution,
    o.is_communication AS is_communication,
    o.is_copy AS is_copy
  FROM models.leaf_ops AS o
  INNER JOIN devices AS d ON o.run_id = d.run_id AND o.device_id = d.device_id
  WHERE NOT d.is_serial
),

pauses AS (
  SELECT
    n.run_id AS run_id,
    n.device_id AS device_id,
    n.start_ps - n.idle_before_ps AS start_ps,
    n.start_ps AS end_ps,
    n.event_id AS event_id,
    n.phase AS phase,
    n.step AS step,
    n.execution AS execution,
    n.is_communication AS is_communication,
    n.is_copy AS is_copy
  FROM models.leaf_ops AS n
  INNER JOIN devices AS e ON n.run_id = e.run_id AND n.device_id = e.device_id
  WHERE e.is_serial AND n.idle_before_ps > 1000000
  UNION ALL
  SELECT
    w.run_id AS run_id,
    w.device_id AS device_id,
    w.start_ps AS start_ps,
    w.end_ps AS end_ps,
    w.event_id AS event_id,
    w.phase AS phase,
    w.step AS step,
    w.execution AS execution,
    w.is_communication AS is_communication,
    w.is_copy AS is_copy
  FROM swept AS w
  WHERE w.end_ps - w.start_ps > 1000000
  UNION ALL
  SELECT
    f.run_id AS run_id,
    f.device_id AS device_id,
    b.start_ps AS start_ps,
    f.first_start_ps AS end_ps,
    CAST(NULL AS BIGINT) AS event_id,
    CAST(NULL AS VARCHAR) AS phase,
    CAST(NULL AS INTEGER) AS step,
    CAST(NULL AS INTEGER) AS execution,
    CAST(NULL AS BOOLEAN) AS is_communication,
    CAST(NULL AS BOOLEAN) AS is_copy
  FROM devices AS f
  INNER JOIN spans AS b ON f.run_id = b.run_id
  WHERE f.first_start_ps - b.start_ps > 1000000
  UNION ALL
  SELECT
    l.run_id AS run_id,
    l.device_id AS device_id,
    l.last_end_ps AS start_ps,
    z.end_ps AS end_ps,
    CAST(NULL AS BIGINT) AS event_id,
    CAST(NULL AS VARCHAR) AS phase,
    CAST(NULL AS INTEGER) AS step,
    CAST(NULL AS INTEGER) AS execution,
    CAST(NULL AS BOOLEAN) AS is_communication,
    CAST(NULL AS BOOLEAN) AS is_copy
  FROM devices AS l
  INNER JOIN spans AS z ON l.run_id = z.run_id
  WHERE z.end_ps - l.last_end_ps > 1000000
)

SELECT
  p.run_id AS run_id,
  p.device_id AS device_id,
  p.start_ps AS start_ps,
  p.end_ps AS end_ps,
  p.event_id AS event_id,
  p.phase AS phase,
  p.step AS step,
  p.execution AS execution,
  p.is_communication AS is_communication,
  p.is_copy AS is_copy
FROM pauses AS p
