/*---
model: copy_windows
description: >
  Copies on a device from start to end: a single copy op, or an asynchronous op other than a collective from its start
  half to the end of its done half. A done ends the last start of its instruction before it on the device; a start or
  a done without a partner has no window.
---*/
-- a start and its dones have one pair, the lowest instruction_id of them; is_start is NULL for a copy that is one op
WITH copies AS (
  SELECT
    run_id,
    instruction_id,
    async_role = 'start' AS is_start,
    CASE WHEN opcode IN ('copy', 'copy-start', 'copy-done') THEN 'copy' ELSE 'async' END AS kind,
    bytes_accessed AS bytes,
    MIN(instruction_id) OVER (
      PARTITION BY run_id, program_id, CASE WHEN async_role = 'done' THEN async_start ELSE name END
    ) AS pair
  FROM main.instructions
  WHERE op_class = 'copy' AND async_role IS DISTINCT FROM 'update'
),

ops AS (
  SELECT
    run_id,
    o.event_id,
    o.device_id,
    instruction_id,
    o.phase,
    o.step,
    o.start_ps,
    o.start_ps + o.duration_ps AS end_ps,
    o.work_before_ps AS start_work_ps,
    o.work_before_ps + o.work_during_ps AS end_work_ps,
    c.is_start,
    c.pair
  FROM main.ops AS o
  INNER JOIN copies AS c USING (run_id, instruction_id)
  WHERE o.is_leaf AND o.device_id IS NOT NULL
),

followed AS (
  SELECT
    run_id,
    event_id,
    device_id,
    instruction_id,
    phase,
    step,
    start_ps,
    start_work_ps,
    is_start,
    LEAD(CASE WHEN NOT is_start THEN end_ps END) OVER pairs AS done_end_ps,
    LEAD(end_work_ps) OVER pairs AS done_work_ps
  FROM ops
  WHERE is_start IS NOT NULL
  WINDOW pairs AS (PARTITION BY run_id, device_id, pair ORDER BY start_ps, event_id)
),

windows AS (
  SELECT
    run_id,
    event_id,
    device_id,
    instruction_id,
    phase,
    step,
    start_ps,
    end_ps,
    FALSE AS is_async,
    start_work_ps,
    end_work_ps
  FROM ops
  WHERE is_start IS NULL
  UNION ALL
  SELECT
    run_id,
    event_id,
    device_id,
    instruction_id,
    phase,
    step,
    start_ps,
    done_end_ps AS end_ps,
    TRUE AS is_async,
    start_work_ps,
    done_work_ps AS end_work_ps
  FROM followed
  WHERE is_start AND done_end_ps IS NOT NULL
)

SELECT
  run_id, -- The run.
  w.event_id, -- The copy, or the start.
  w.device_id, -- The device.
  c.kind, -- copy for copies, async for other asynchronous ops.
  w.phase, -- Phase in which it starts; NULL outside of phases.
  w.step, -- Step in which it starts; NULL outside of steps.
  w.start_ps, -- Start of the window.
  w.end_ps, -- End of the window, exclusive.
  c.bytes, -- The instruction's bytes_accessed, of a start those of one execution; NULL where not known.
  w.is_async, -- A start with its done.
  w.start_work_ps, -- Time before its start in which the device computes or communicates.
  w.end_work_ps -- The same before its end.
FROM windows AS w
INNER JOIN copies AS c USING (run_id, instruction_id)
