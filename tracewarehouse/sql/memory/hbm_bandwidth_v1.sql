/*---
metric: hbm_bandwidth
version: 1
status: stable
unit: GB/s
polarity: higher_is_better
grain: [run_id, phase, device_id]
value: hbm_gbps
needs: [memory_traffic]
description: >
  Memory traffic of a device over its busy time, in decimal GB: the sum of bytes_accessed of the leaf ops over their
  union.
notes: >
  An op between two steps, such as a sampling program, belongs to the step before it. If a run has steps, ops outside
  of them are left out. Of an asynchronous op only the start counts, because the done states the same bytes again. The
  bytes are the compiler's estimate, or those given at ingest, and include what an op keeps in on-chip memory. Ops
  without known bytes count with their time only, so the value is a lower bound if unsized_share is above 0.
changed: First version.
---*/
WITH moved AS (
  SELECT
    run_id, e.device_id, e.phase,
    CAST(SUM(CASE WHEN i.async_role = 'done' THEN 0 ELSE c.bytes_accessed * e.ops END) AS BIGINT) AS bytes,
    SUM(e.self_ps) AS self_ps,
    SUM(e.self_ps) FILTER (WHERE COALESCE(i.async_role, 'start') = 'start' AND c.bytes_accessed IS NULL) AS unsized_ps,
    SUM(e.ops) FILTER (WHERE COALESCE(i.async_role, 'start') = 'start' AND c.bytes_accessed IS NULL) AS unsized_ops
  FROM models.instruction_time AS e
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  INNER JOIN models.instruction_costs AS c USING (run_id, instruction_id)
  GROUP BY run_id, e.device_id, e.phase
)

SELECT
  d.run_id, d.phase, d.device_id,
  m.bytes * 1000 / d.busy_ps AS hbm_gbps, -- Bytes over busy time.
  -- Share of the device's peak; NULL if the peak is unknown.
  m.bytes * 1000 / d.busy_ps / NULLIF(v.peak_hbm_gbps, 0) AS utilization,
  m.bytes, -- Bytes of the phase.
  d.busy_ps / 1e9 AS busy_ms, -- Union of the leaf ops.
  CAST(COALESCE(m.unsized_ops, 0) AS BIGINT) AS unsized_ops, -- Ops whose bytes are unknown; they are not counted here.
  COALESCE(m.unsized_ps, 0) / NULLIF(m.self_ps, 0) AS unsized_share -- Share of these ops in the self time of all.
FROM models.device_phases AS d
INNER JOIN moved AS m ON d.run_id = m.run_id AND d.device_id = m.device_id AND d.phase IS NOT DISTINCT FROM m.phase
LEFT JOIN main.devices AS v ON d.run_id = v.run_id AND d.device_id = v.device_id
WHERE m.bytes > 0 AND d.busy_ps > 0
