/*---
model: communication_ops
description: >
  The op-line events of each collective: the op of a synchronous one, the start and the done of an asynchronous one.
  Their time is exposed: the device does nothing else in it. The rest of a window is hidden.
columns:
  run_id: The run.
  event_id: The op, the start or the done.
  device_id: The device.
  phase: Phase in which the collective starts; NULL outside of phases.
  step: Step in which the collective starts; NULL outside of steps.
  kind: Kind of collective.
  axis: Mesh axes of its groups.
  start_ps: Start of the event.
  end_ps: End of the event, exclusive.
  exposed_ps: Time of the event that no communication op before it on the device covers.
---*/
WITH halves AS (
  SELECT
    c.run_id AS run_id,
    c.event_id AS event_id,
    c.device_id AS device_id,
    c.phase AS phase,
    c.step AS step,
    c.kind AS kind,
    c.axis AS axis
  FROM main.collectives AS c
  WHERE c.is_async AND c.window_source <> 'start only'
  UNION ALL
  SELECT
    d.run_id AS run_id,
    d.done_event_id AS event_id,
    d.device_id AS device_id,
    d.phase AS phase,
    d.step AS step,
    d.kind AS kind,
    d.axis AS axis
  FROM main.collectives AS d
  WHERE d.done_event_id IS NOT NULL
),

-- the window of a collective that is one op, or a start alone, is the time of that event
ops AS (
  SELECT
    w.run_id AS run_id,
    w.event_id AS event_id,
    w.device_id AS device_id,
    w.phase AS phase,
    w.step AS step,
    w.kind AS kind,
    w.axis AS axis,
    w.start_ps AS start_ps,
    w.end_ps AS end_ps
  FROM main.collectives AS w
  WHERE NOT w.is_async OR w.window_source = 'start only'
  UNION ALL
  SELECT
    h.run_id AS run_id,
    h.event_id AS event_id,
    h.device_id AS device_id,
    h.phase AS phase,
    h.step AS step,
    h.kind AS kind,
    h.axis AS axis,
    o.start_ps AS start_ps,
    o.start_ps + o.duration_ps AS end_ps
  FROM halves AS h
  INNER JOIN main.ops AS o ON h.run_id = o.run_id AND h.event_id = o.event_id
  INNER JOIN models.instruction_kinds AS i ON o.run_id = i.run_id AND o.instruction_id = i.instruction_id
  WHERE i.is_communication
),

timed AS (
  SELECT
    p.run_id AS run_id,
    p.event_id AS event_id,
    p.device_id AS device_id,
    p.phase AS phase,
    p.step AS step,
    p.kind AS kind,
    p.axis AS axis,
    p.start_ps AS start_ps,
    p.end_ps AS end_ps,
    COALESCE(d.is_serial, FALSE) AS is_serial
  FROM ops AS p
  LEFT JOIN models.op_order AS d ON p.run_id = d.run_id AND p.device_id = d.device_id
),

swept AS (
  SELECT
    s.run_id AS run_id,
    s.event_id AS event_id,
    s.device_id AS device_id,
    s.phase AS phase,
    s.step AS step,
    s.kind AS kind,
    s.axis AS axis,
    s.start_ps AS start_ps,
    s.end_ps AS end_ps,
    MAX(s.end_ps) OVER (
      PARTITION BY s.run_id, s.device_id ORDER BY s.start_ps, s.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS covered_until_ps
  FROM timed AS s
  WHERE NOT s.is_serial
)

SELECT
  t.run_id AS run_id,
  t.event_id AS event_id,
  t.device_id AS device_id,
  t.phase AS phase,
  t.step AS step,
  t.kind AS kind,
  t.axis AS axis,
  t.start_ps AS start_ps,
  t.end_ps AS end_ps,
  t.end_ps - t.start_ps AS exposed_ps
FROM timed AS t
WHERE t.is_serial
UNION ALL
SELECT
  u.run_id AS run_id,
  u.event_id AS event_id,
  u.device_id AS device_id,
  u.phase AS phase,
  u.step AS step,
  u.kind AS kind,
  u.axis AS axis,
  u.start_ps AS start_ps,
  u.end_ps AS end_ps,
  GREATEST(u.end_ps - GREATEST(u.start_ps, COALESCE(u.covered_until_ps, u.start_ps)), 0) AS exposed_ps
FROM swept AS u
