/*---
model: swept_ops
inline: true
description: >
  The leaf ops of the devices whose ops may overlap, with the time that each adds to those before it. Each moment counts
  once, for the op that covers it first in order of start, so that these times add up to the union of the ops. An op
  between two steps, such as a sampling program, belongs to the step before it, which lasts until the next begins.
columns:
  run_id: The run.
  device_id: The device.
  event_id: The op.
  instruction_id: The HLO instruction.
  step_start_ps: Start of the step it belongs to; NULL before the first, after the last, and in a capture without steps.
  start_ps: Start of the op.
  end_ps: End of the op, exclusive.
  busy_ps: Time of the op that no op before it covers.
  compute_ps: The same among the ops that are neither communication nor copies; 0 for the others.
---*/
WITH devices AS (
  SELECT
    g.run_id AS run_id,
    g.device_id AS device_id
  FROM models.op_order AS g
  WHERE NOT g.is_serial
),

timed AS (
  SELECT
    o.run_id AS run_id,
    o.device_id AS device_id,
    o.event_id AS event_id,
    o.instruction_id AS instruction_id,
    o.start_ps AS start_ps,
    o.end_ps AS end_ps,
    o.is_compute AS is_compute,
    CAST(NULL AS BIGINT) AS step_start_ps
  FROM models.leaf_ops AS o
  INNER JOIN devices AS d ON o.run_id = d.run_id AND o.device_id = d.device_id
  UNION ALL
  SELECT
    s.run_id AS run_id,
    s.device_id AS device_id,
    CAST(-1 AS BIGINT) AS event_id,
    CAST(NULL AS INTEGER) AS instruction_id,
    s.start_ps AS start_ps,
    s.start_ps AS end_ps,
    FALSE AS is_compute,
    s.start_ps AS step_start_ps
  FROM models.steps AS s
  INNER JOIN devices AS d ON s.run_id = d.run_id AND s.device_id = d.device_id
  WHERE s.clock = 'device'
),

placed AS (
  SELECT
    t.run_id AS run_id,
    t.device_id AS device_id,
    t.event_id AS event_id,
    t.instruction_id AS instruction_id,
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
    ) AS step_start_ps
  FROM timed AS t
)

SELECT
  p.run_id AS run_id,
  p.device_id AS device_id,
  p.event_id AS event_id,
  p.instruction_id AS instruction_id,
  w.start_ps AS step_start_ps,
  p.start_ps AS start_ps,
  p.end_ps AS end_ps,
  GREATEST(p.end_ps - GREATEST(p.start_ps, COALESCE(p.busy_until_ps, p.start_ps)), 0) AS busy_ps,
  CASE
    WHEN p.is_compute
      THEN GREATEST(p.end_ps - GREATEST(p.start_ps, COALESCE(p.compute_until_ps, p.start_ps)), 0)
    ELSE 0
  END AS compute_ps
FROM placed AS p
LEFT JOIN models.steps AS w
  ON
    p.run_id = w.run_id AND p.device_id = w.device_id AND p.step_start_ps = w.start_ps AND w.clock = 'device'
    AND p.start_ps < w.until_ps
WHERE p.event_id >= 0
