/*---
status: stable
unit: GB/s
polarity: higher_is_better
grain: [run_id, phase, device_id]
value: hbm_gbps
needs: [memory_traffic]
description: >
  Bytes in HBM that a device's leaf ops access, over its busy time, in decimal GB. memory_access_breakdown splits the
  bytes by memory. Other memories have columns of their own.
notes: >
  An op between two steps, such as a sampling program, belongs to the step before it. If a run has steps, ops outside of
  them are left out. The bytes are the compiler's estimate, those of the inputs and result of a kernel's operator, or
  those given at ingest. An asynchronous op counts with its
  start, in the memory that it reads. So a copy from the host counts in other_gbps, and what its done writes to HBM
  counts in copied_gbps. XProf's bandwidth is the sum of hbm_gbps and copied_gbps. Bytes that are given or not split
  count as HBM's; unsplit_bytes counts them. Ops without known bytes count with their time only, so the value is a lower
  bound if unsized_share is above 0.
---*/
WITH sized AS (
  SELECT
    run_id, e.device_id, e.phase, e.ops, e.self_ps,
    COALESCE(i.async_role, 'start') = 'start' AS is_counted,
    e.bytes_accessed, e.hbm_bytes_accessed, e.on_chip_bytes_accessed AS on_chip_bytes,
    e.on_chip_bytes_accessed IS NOT NULL AS is_split
  FROM models.instruction_time AS e
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
),

moved AS (
  SELECT
    run_id, device_id, phase,
    CAST(SUM(bytes_accessed * ops) FILTER (WHERE is_counted) AS BIGINT) AS all_bytes,
    CAST(SUM(hbm_bytes_accessed * ops) FILTER (WHERE is_counted) AS BIGINT) AS bytes,
    CAST(SUM(on_chip_bytes * ops) FILTER (WHERE is_counted) AS BIGINT) AS on_chip_bytes,
    CAST(
      SUM(GREATEST(bytes_accessed - hbm_bytes_accessed - on_chip_bytes, 0) * ops) FILTER (WHERE is_counted) AS BIGINT
    ) AS other_bytes,
    CAST(SUM(hbm_bytes_accessed * ops) FILTER (WHERE is_split AND NOT is_counted) AS BIGINT) AS copied_bytes,
    CAST(COALESCE(SUM(bytes_accessed * ops) FILTER (WHERE is_counted AND NOT is_split), 0) AS BIGINT) AS unsplit_bytes,
    SUM(self_ps) AS self_ps,
    SUM(self_ps) FILTER (WHERE is_counted AND bytes_accessed IS NULL) AS unsized_ps,
    SUM(ops) FILTER (WHERE is_counted AND bytes_accessed IS NULL) AS unsized_ops
  FROM sized
  GROUP BY run_id, device_id, phase
)

SELECT
  d.run_id, d.phase, d.device_id,
  m.bytes * 1000 / d.busy_ps AS hbm_gbps, -- Bytes of HBM over busy time.
  -- Share of the device's peak; NULL if the peak is unknown.
  m.bytes * 1000 / d.busy_ps / NULLIF(v.peak_hbm_gbps, 0) AS utilization,
  m.bytes, -- Bytes of HBM in the phase.
  m.on_chip_bytes * 1000 / d.busy_ps AS on_chip_gbps, -- Bytes of memories on the chip, over busy time; NULL if not split.
  -- Bytes of other memories, such as the host's, over busy time; NULL if not split.
  m.other_bytes * 1000 / d.busy_ps AS other_gbps,
  -- Bytes that asynchronous ops write to HBM at their done, over busy time; NULL if not split.
  m.copied_bytes * 1000 / d.busy_ps AS copied_gbps,
  m.unsplit_bytes, -- The part of bytes that is not known to be HBM's.
  d.busy_ps / 1e9 AS busy_ms, -- Union of the leaf ops.
  CAST(COALESCE(m.unsized_ops, 0) AS BIGINT) AS unsized_ops, -- Ops whose bytes are unknown; they are not counted here.
  COALESCE(m.unsized_ps, 0) / NULLIF(m.self_ps, 0) AS unsized_share -- Share of these ops in the self time of all.
FROM models.device_phases AS d
INNER JOIN moved AS m ON d.run_id = m.run_id AND d.device_id = m.device_id AND d.phase IS NOT DISTINCT FROM m.phase
LEFT JOIN main.devices AS v ON d.run_id = v.run_id AND d.device_id = v.device_id
WHERE m.all_bytes > 0 AND d.busy_ps > 0
