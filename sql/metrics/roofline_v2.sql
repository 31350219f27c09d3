/*---
metric: roofline
version: 2
status: stable
unit: FLOP/s
polarity: none
grain: [run_id, instruction_id]
value: flops_per_s
requires: SELECT i.run_id FROM main.instructions AS i WHERE i.flops > 0 OR i.bytes_accessed > 0
description: >
  Each HLO instruction's place under the roofline: floating-point operations and memory traffic of its executions over
  their self time, all devices together, as the profiler states flops and bytes. The bound is the resource that would
  take longest at its peak - the matrix units, the memory, or for a collective the inter-chip links with the bytes that
  it sends - and the attained share is that time over the time it took. The halves of asynchronous ops, which state the
  bytes of a transfer that goes on between them, have no row. XProf's roofline has the same operations,
  bytes and peaks, no bound by links, and time by another clock of the device, by which single ops differ by some percent.
  Source: Williams et al., Roofline (2009).
columns:
  run_id: The run.
  instruction_id: The HLO instruction.
  name: Its name.
  category: The profiler's category.
  flops_per_s: Operations per second of a device; NULL where the profiler states none.
  flops: Operations of one execution.
  bytes_accessed: Memory traffic of one execution.
  wire_bytes: Bytes that all executions send; NULL for other than collectives, and where not known.
  intensity: Operations per byte of memory traffic.
  self_us: Mean self time of an execution.
  bound: compute, memory or ici; NULL where a peak, or what a collective sends, is not known.
  attained: Share of the bound's peak; NULL where the bound is.
  executions: Executions on all devices.
changed: >
  A collective of which it is not known what it sends, such as one with ranks outside the capture, has no bound; version 1
  took the larger of memory and matrix units for it.
---*/
WITH timed AS (
  SELECT
    o.run_id AS run_id,
    o.instruction_id AS instruction_id,
    CAST(SUM(o.self_ps) AS BIGINT) AS self_ps,
    CAST(SUM(o.ops) AS BIGINT) AS executions,
    MIN(d.peak_flops_per_s) AS peak_flops_per_s,
    MIN(d.peak_hbm_gbps) AS peak_hbm_gbps,
    MIN(d.peak_ici_gbps) AS peak_ici_gbps
  FROM models.instruction_time AS o
  LEFT JOIN main.devices AS d ON o.run_id = d.run_id AND o.device_id = d.device_id
  GROUP BY o.run_id, o.instruction_id
),

sent AS (
  SELECT
    c.run_id AS run_id,
    c.instruction_id AS instruction_id,
    CASE WHEN COUNT(c.wire_bytes) = COUNT(*) THEN CAST(SUM(c.wire_bytes) AS BIGINT) ELSE NULL END AS wire_bytes
  FROM main.collectives AS c
  GROUP BY c.run_id, c.instruction_id
),

needed AS (
  SELECT
    t.run_id AS run_id,
    t.instruction_id AS instruction_id,
    i.name AS name,
    i.category AS category,
    i.flops AS flops,
    i.bytes_accessed AS bytes_accessed,
    i.collective IS NOT NULL AND s.wire_bytes IS NULL AS is_unsized,
    s.wire_bytes AS wire_bytes,
    t.self_ps AS self_ps,
    t.executions AS executions,
    CAST(COALESCE(i.flops, 0) AS DOUBLE) * CAST(t.executions AS DOUBLE)
    * CAST(CAST(1000000000000 AS DOUBLE) / CAST(NULLIF(t.peak_flops_per_s, 0) AS DOUBLE) AS DOUBLE) AS compute_ps,
    CAST(COALESCE(i.bytes_accessed, 0) AS DOUBLE) * CAST(t.executions AS DOUBLE)
    * CAST(CAST(1000 AS DOUBLE) / CAST(NULLIF(t.peak_hbm_gbps, 0) AS DOUBLE) AS DOUBLE) AS memory_ps,
    CAST(COALESCE(s.wire_bytes, 0) AS DOUBLE)
    * CAST(CAST(1000 AS DOUBLE) / CAST(NULLIF(t.peak_ici_gbps, 0) AS DOUBLE) AS DOUBLE) AS ici_ps
  FROM timed AS t
  INNER JOIN main.instructions AS i ON t.run_id = i.run_id AND t.instruction_id = i.instruction_id
  LEFT JOIN sent AS s ON t.run_id = s.run_id AND t.instruction_id = s.instruction_id
  WHERE t.self_ps > 0 AND i.async_role IS NULL AND (i.flops > 0 OR i.bytes_accessed > 0)
)

SELECT
  n.run_id AS run_id,
  n.instruction_id AS instruction_id,
  n.name AS name,
  n.category AS category,
  CAST(CAST(n.flops AS DOUBLE) * CAST(n.executions AS DOUBLE) * CAST(1000000000000 AS DOUBLE) AS DOUBLE)
  / CAST(n.self_ps AS DOUBLE) AS flops_per_s,
  n.flops AS flops,
  n.bytes_accessed AS bytes_accessed,
  n.wire_bytes AS wire_bytes,
  CAST(n.flops AS DOUBLE) / CAST(NULLIF(n.bytes_accessed, 0) AS DOUBLE) AS intensity,
  CAST(n.self_ps AS DOUBLE) / CAST(n.executions * 1000000 AS DOUBLE) AS self_us,
  CASE
    WHEN n.compute_ps IS NULL OR n.memory_ps IS NULL THEN NULL
    WHEN n.is_unsized OR (n.wire_bytes > 0 AND n.ici_ps IS NULL) THEN NULL
    WHEN n.wire_bytes > 0 AND n.ici_ps >= n.memory_ps AND n.ici_ps >= n.compute_ps THEN 'ici'
    WHEN n.memory_ps >= n.compute_ps THEN 'memory'
    ELSE 'compute'
  END AS bound,
  CASE
    WHEN n.compute_ps IS NULL OR n.memory_ps IS NULL THEN NULL
    WHEN n.is_unsized OR (n.wire_bytes > 0 AND n.ici_ps IS NULL) THEN NULL
    ELSE
      CAST(GREATEST(n.compute_ps, n.memory_ps, COALESCE(n.ici_ps, n.memory_ps)) AS DOUBLE) / CAST(n.self_ps AS DOUBLE)
  END AS attained,
  n.executions AS executions
FROM needed AS n
