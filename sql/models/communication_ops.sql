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
  WHERE c.is_async OR c.window_source <> 'op'
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

-- the window of a collective that is one op is the op's own time
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
  WHERE w.window_source = 'op' AND NOT w.is_async
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
    MAX(p.end_ps) OVER (
      PARTITION BY p.run_id, p.device_id ORDER BY p.start_ps, p.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS covered_until_ps
  FROM ops AS p
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
  GREATEST(t.end_ps - GREATEST(t.start_ps, COALESCE(t.covered_until_ps, t.start_ps)), 0) AS exposed_ps
FROM timed AS t
