/*---
model: covered_ops
inline: true
description: >
  The leaf ops of each device with the time that each adds to those before it, as models.swept_ops has it where they may
  overlap; elsewhere it is that of the op. An op between two steps, such as a sampling program, belongs to the step before
  it, which lasts until the next begins.
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
  WHERE g.is_serial
)

SELECT
  w.run_id AS run_id,
  w.device_id AS device_id,
  w.event_id AS event_id,
  w.instruction_id AS instruction_id,
  w.step_start_ps AS step_start_ps,
  w.start_ps AS start_ps,
  w.end_ps AS end_ps,
  w.busy_ps AS busy_ps,
  w.compute_ps AS compute_ps
FROM models.swept_ops AS w
UNION ALL
SELECT
  n.run_id AS run_id,
  n.device_id AS device_id,
  n.event_id AS event_id,
  n.instruction_id AS instruction_id,
  t.start_ps AS step_start_ps,
  n.start_ps AS start_ps,
  n.end_ps AS end_ps,
  n.end_ps - n.start_ps AS busy_ps,
  CASE WHEN n.is_compute THEN n.end_ps - n.start_ps ELSE 0 END AS compute_ps
FROM models.leaf_ops AS n
INNER JOIN devices AS e ON n.run_id = e.run_id AND n.device_id = e.device_id
LEFT JOIN models.steps AS t
  ON n.run_id = t.run_id AND n.device_id = t.device_id AND n.step = t.step AND t.clock = 'device'
WHERE n.step IS NOT NULL
UNION ALL
SELECT
  b.run_id AS run_id,
  b.device_id AS device_id,
  b.event_id AS event_id,
  b.instruction_id AS instruction_id,
  u.start_ps AS step_start_ps,
  b.start_ps AS start_ps,
  b.end_ps AS end_ps,
  b.end_ps - b.start_ps AS busy_ps,
  CASE WHEN b.is_compute THEN b.end_ps - b.start_ps ELSE 0 END AS compute_ps
FROM models.leaf_ops AS b
INNER JOIN devices AS f ON b.run_id = f.run_id AND b.device_id = f.device_id
LEFT JOIN models.steps AS u
  ON
    b.run_id = u.run_id AND b.device_id = u.device_id AND u.clock = 'device'
    AND b.start_ps >= u.start_ps AND b.start_ps < u.until_ps
WHERE b.step IS NULL
