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
WITH halves AS (
  SELECT
    o.run_id AS run_id,
    o.event_id AS event_id,
    o.device_id AS device_id,
    o.phase AS phase,
    o.step AS step,
    o.start_ps AS start_ps,
    o.end_ps AS end_ps,
    i.program_id AS program_id,
    CASE WHEN i.async_role = 'done' THEN i.async_start ELSE i.name END AS start_name,
    i.async_role AS role,
    CASE WHEN i.opcode IN ('copy', 'copy-start', 'copy-done') THEN 'copy' ELSE 'async' END AS kind,
    i.bytes_accessed AS bytes,
    o.compute_before_ps AS compute_before_ps
  FROM models.leaf_ops AS o
  INNER JOIN main.instructions AS i ON o.run_id = i.run_id AND o.instruction_id = i.instruction_id
  WHERE o.is_copy
),

followed AS (
  SELECT
    h.run_id AS run_id,
    h.event_id AS event_id,
    h.device_id AS device_id,
    h.phase AS phase,
    h.step AS step,
    h.start_ps AS start_ps,
    h.kind AS kind,
    h.role AS role,
    h.bytes AS bytes,
    h.compute_before_ps AS compute_before_ps,
    LEAD(h.role) OVER (
      PARTITION BY h.run_id, h.device_id, h.program_id, h.start_name ORDER BY h.start_ps, h.event_id
    ) AS next_role,
    LEAD(h.end_ps) OVER (
      PARTITION BY h.run_id, h.device_id, h.program_id, h.start_name ORDER BY h.start_ps, h.event_id
    ) AS next_end_ps,
    LEAD(h.compute_before_ps) OVER (
      PARTITION BY h.run_id, h.device_id, h.program_id, h.start_name ORDER BY h.start_ps, h.event_id
    ) AS next_compute_before_ps
  FROM halves AS h
  WHERE h.role IS NOT NULL
)

SELECT
  c.run_id AS run_id,
  c.event_id AS event_id,
  c.device_id AS device_id,
  c.kind AS kind,
  c.phase AS phase,
  c.step AS step,
  c.start_ps AS start_ps,
  c.end_ps AS end_ps,
  c.bytes AS bytes,
  FALSE AS is_async,
  c.compute_before_ps AS start_compute_ps,
  c.compute_before_ps AS end_compute_ps
FROM halves AS c
WHERE c.role IS NULL
UNION ALL
SELECT
  f.run_id AS run_id,
  f.event_id AS event_id,
  f.device_id AS device_id,
  f.kind AS kind,
  f.phase AS phase,
  f.step AS step,
  f.start_ps AS start_ps,
  f.next_end_ps AS end_ps,
  f.bytes AS bytes,
  TRUE AS is_async,
  f.compute_before_ps AS start_compute_ps,
  f.next_compute_before_ps AS end_compute_ps
FROM followed AS f
WHERE f.role = 'start' AND f.next_role = 'done'
