/*---
metric: hbm_bandwidth
version: 2
status: stable
unit: GB/s
polarity: higher_is_better
grain: [run_id, phase, device_id]
value: hbm_gbps
requires: SELECT i.run_id FROM main.instructions AS i WHERE i.bytes_accessed > 0
description: >
  Memory traffic of a device over its busy time: the profiler's bytes_accessed of the leaf ops over their union, in
  decimal GB. Bytes and time are those of the same ops: an op between two steps, such as a sampling program, belongs to
  the step before it, and ops outside the steps of a device that has some are left out. Of an asynchronous op the start
  counts and the done does not, which states the same bytes again. The bytes are the compiler's estimate, and what an op
  keeps in on-chip memory is among them.
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none, and in a capture without steps.
  device_id: The device.
  hbm_gbps: Bytes over busy time.
  utilization: Share of the device's peak; NULL where that is not known.
  bytes: Bytes of the phase.
  busy_ms: Union of the leaf ops.
  unsized_ops: Ops whose bytes are not known and that are missing here.
changed: >
  The bytes of ops between two steps count where their time does; version 1 counted their time alone, which made the
  bandwidth too low.
---*/
WITH moved AS (
  SELECT
    e.run_id AS run_id,
    e.device_id AS device_id,
    e.phase AS phase,
    CAST(SUM(CASE WHEN i.async_role = 'done' THEN 0 ELSE i.bytes_accessed * e.ops END) AS BIGINT) AS bytes,
    CAST(
      SUM(CASE WHEN COALESCE(i.async_role, 'start') = 'start' AND i.bytes_accessed IS NULL THEN e.ops ELSE 0 END)
      AS BIGINT
    ) AS unsized_ops
  FROM models.phase_instructions AS e
  INNER JOIN main.instructions AS i ON e.run_id = i.run_id AND e.instruction_id = i.instruction_id
  GROUP BY e.run_id, e.device_id, e.phase
)

SELECT
  d.run_id AS run_id,
  d.phase AS phase,
  d.device_id AS device_id,
  CAST(m.bytes * 1000 AS DOUBLE) / CAST(d.busy_ps AS DOUBLE) AS hbm_gbps,
  CAST(CAST(m.bytes * 1000 AS DOUBLE) / CAST(d.busy_ps AS DOUBLE) AS DOUBLE)
  / CAST(NULLIF(v.peak_hbm_gbps, 0) AS DOUBLE) AS utilization,
  m.bytes AS bytes,
  CAST(d.busy_ps AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS busy_ms,
  m.unsized_ops AS unsized_ops
FROM models.device_phases AS d
INNER JOIN moved AS m
  ON
    d.run_id = m.run_id AND d.device_id = m.device_id
    AND COALESCE(d.phase, '') = COALESCE(m.phase, '')
LEFT JOIN main.devices AS v ON d.run_id = v.run_id AND d.device_id = v.device_id
WHERE m.bytes > 0 AND d.busy_ps > 0
