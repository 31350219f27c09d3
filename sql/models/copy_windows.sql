/*---
model: copy_windows
description: >
  Copies on a device from start to end: a copy op of its own, or the start of an asynchronous op that is no collective to
  the end of its done. A done closes the start of its instruction that is the last one before it on the device; a start or
  a done that is left alone has no window.
columns:
  run_id: The run.
  event_id: The copy, or the start.
  device_id: The device.
  kind: copy for copies, async for other asynchronous ops.
  phase: Phase in which it starts; NULL outside of phases.
  step: Step in which it starts; NULL outside of steps.
  start_ps: Start of the window.
  end_ps: End of the window, exclusive.
  bytes: The instruction's bytes_accessed, of a start those of one execution; NULL where not known.
  is_async: A start with its done.
  start_compute_ps: Time that the device's compute took before its start, where main.ops has it.
  end_compute_ps: The same before its end.
---*/
-- a start and its dones have one pair, the lowest instruction_id of them; is_start is NULL for a copy that is one op
WITH copies AS (
  SELECT
    i.run_id AS run_id,
    i.instruction_id AS instruction_id,
    i.async_role = 'start' AS is_start,
    CASE WHEN i.opcode IN ('copy', 'copy-start', 'copy-done') THEN 'copy' ELSE 'async' END AS kind,
    i.bytes_accessed AS bytes,
    MIN(i.instruction_id) OVER (
      PARTITION BY i.run_id, i.program_id, CASE WHEN i.async_role = 'done' THEN i.async_start ELSE i.name END
    ) AS pair
  FROM main.instructions AS i
  INNER JOIN models.instruction_kinds AS k ON i.run_id = k.run_id AND i.instruction_id = k.instruction_id
  WHERE k.is_copy AND COALESCE(i.async_role, '') <> 'update'
),

-- of main.ops, since models.leaf_ops would look up every op
ops AS (
  SELECT
    o.run_id AS run_id,
    o.event_id AS event_id,
    o.device_id AS device_id,
    o.instruction_id AS instruction_id,
    o.phase AS phase,
    o.step AS step,
    o.start_ps AS start_ps,
    o.start_ps + o.duration_ps AS end_ps,
    o.compute_before_ps AS compute_before_ps,
    c.is_start AS is_start,
    c.pair AS pair
  FROM main.ops AS o
  INNER JOIN copies AS c ON o.run_id = c.run_id AND o.instruction_id = c.instruction_id
  WHERE o.is_leaf AND o.device_id IS NOT NULL
),

followed AS (
  SELECT
    h.run_id AS run_id,
    h.event_id AS event_id,
    h.device_id AS device_id,
    h.instruction_id AS instruction_id,
    h.phase AS phase,
    h.step AS step,
    h.start_ps AS start_ps,
    h.compute_before_ps AS compute_before_ps,
    h.is_start AS is_start,
    LEAD(CASE WHEN h.is_start THEN NULL ELSE h.end_ps END) OVER (
      PARTITION BY h.run_id, h.device_id, h.pair ORDER BY h.start_ps, h.event_id
    ) AS done_end_ps,
    LEAD(h.compute_before_ps) OVER (
      PARTITION BY h.run_id, h.device_id, h.pair ORDER BY h.start_ps, h.event_id
    ) AS done_compute_before_ps
  FROM ops AS h
  WHERE h.is_start IS NOT NULL
),

windows AS (
  SELECT
    s.run_id AS run_id,
    s.event_id AS event_id,
    s.device_id AS device_id,
    s.instruction_id AS instruction_id,
    s.phase AS phase,
    s.step AS step,
    s.start_ps AS start_ps,
    s.end_ps AS end_ps,
    FALSE AS is_async,
    s.compute_before_ps AS start_compute_ps,
    s.compute_before_ps AS end_compute_ps
  FROM ops AS s
  WHERE s.is_start IS NULL
  UNION ALL
  SELECT
    f.run_id AS run_id,
    f.event_id AS event_id,
    f.device_id AS device_id,
    f.instruction_id AS instruction_id,
    f.phase AS phase,
    f.step AS step,
    f.start_ps AS start_ps,
    f.done_end_ps AS end_ps,
    TRUE AS is_async,
    f.compute_before_ps AS start_compute_ps,
    f.done_compute_before_ps AS end_compute_ps
  FROM followed AS f
  WHERE f.is_start AND f.done_end_ps IS NOT NULL
)

SELECT
  w.run_id AS run_id,
  w.event_id AS event_id,
  w.device_id AS device_id,
  x.kind AS kind,
  w.phase AS phase,
  w.step AS step,
  w.start_ps AS start_ps,
  w.end_ps AS end_ps,
  x.bytes AS bytes,
  w.is_async AS is_async,
  w.start_compute_ps AS start_compute_ps,
  w.end_compute_ps AS end_compute_ps
FROM windows AS w
INNER JOIN copies AS x ON w.run_id = x.run_id AND w.instruction_id = x.instruction_id
