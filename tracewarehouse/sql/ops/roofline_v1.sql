/*---
metric: roofline
version: 1
status: stable
unit: FLOP/s
polarity: none
grain: [run_id, instruction_id]
value: flops_per_s
needs: [op_costs]
description: >
  Each HLO instruction's place under the roofline: floating-point operations and memory traffic of its executions over
  their self time, all devices together. The bound is the resource that would take longest at its peak. The attained
  share is that time over the time it took.
notes: >
  Flops and bytes are those that the profiler states or that were given at ingest. The resources are the matrix units
  at the rate of the type that they multiply, the memory, and for a collective the inter-chip links with the bytes
  that it sends. An op that computes and whose flops or bytes are not known, such as a Pallas kernel, has no bound.
  Halves of asynchronous ops have no row, because they state the bytes of a transfer that goes on between them.
  XProf's roofline has the same operations, bytes and peaks, no bound by links, and a time by another clock of the
  device, by which single ops differ by some percent. Source: Williams et al., Roofline (2009).
changed: First version.
---*/
WITH timed AS (
  SELECT
    run_id, instruction_id,
    SUM(o.self_ps) AS self_ps,
    CAST(SUM(o.ops) AS BIGINT) AS executions,
    MIN(k.peak_flops_per_s) AS peak_flops_per_s,
    MIN(d.peak_hbm_gbps) AS peak_hbm_gbps,
    MIN(d.peak_ici_gbps) AS peak_ici_gbps
  FROM models.instruction_time AS o
  INNER JOIN models.instruction_costs AS c USING (run_id, instruction_id)
  LEFT JOIN main.devices AS d USING (run_id, device_id)
  LEFT JOIN models.device_peaks AS k
    ON
      o.run_id = k.run_id
      AND o.device_id = k.device_id
      AND COALESCE(c.product_type, 'bf16') = k.product_type
  GROUP BY run_id, instruction_id
),

shares AS (
  SELECT
    run_id,
    COALESCE(SUM(t.self_ps) FILTER (WHERE c.flops IS NULL OR c.bytes_accessed IS NULL), 0)
    / NULLIF(SUM(t.self_ps), 0) AS unsized_share
  FROM timed AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  INNER JOIN models.instruction_costs AS c USING (run_id, instruction_id)
  WHERE i.op_class = 'compute'
  GROUP BY run_id
),

sent AS (
  SELECT
    run_id, instruction_id,
    CASE WHEN COUNT(wire_bytes) = COUNT(*) THEN CAST(SUM(wire_bytes) AS BIGINT) END AS wire_bytes
  FROM main.collectives
  GROUP BY run_id, instruction_id
),

needed AS (
  SELECT
    run_id, instruction_id, i.name, i.category, c.flops, c.bytes_accessed,
    (i.collective IS NOT NULL AND s.wire_bytes IS NULL)
    OR (i.op_class = 'compute' AND (c.flops IS NULL OR c.bytes_accessed IS NULL)) AS is_unsized,
    h.unsized_share, s.wire_bytes, t.self_ps, t.executions,
    CAST(COALESCE(c.flops, 0) AS DOUBLE) * t.executions * (1e12 / NULLIF(t.peak_flops_per_s, 0)) AS compute_ps,
    CAST(COALESCE(c.hbm_bytes_accessed, 0) AS DOUBLE) * t.executions * (1e3 / NULLIF(t.peak_hbm_gbps, 0)) AS memory_ps,
    COALESCE(s.wire_bytes, 0) * (1e3 / NULLIF(t.peak_ici_gbps, 0)) AS ici_ps
  FROM timed AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  INNER JOIN models.instruction_costs AS c USING (run_id, instruction_id)
  LEFT JOIN sent AS s USING (run_id, instruction_id)
  LEFT JOIN shares AS h USING (run_id)
  WHERE t.self_ps > 0 AND i.async_role IS NULL AND (c.flops > 0 OR c.bytes_accessed > 0)
)

SELECT
  run_id, instruction_id,
  name, -- Its name.
  category,
  -- Operations per second of a device; NULL if unknown.
  CAST(flops AS DOUBLE) * executions * 1e12 / self_ps AS flops_per_s,
  flops, -- Operations of one execution.
  bytes_accessed, -- Memory traffic of one execution.
  wire_bytes, -- Bytes that all executions send; NULL if unknown or not a collective.
  flops / NULLIF(bytes_accessed, 0) AS intensity, -- Operations per byte of memory traffic.
  self_ps / (executions * 1e6) AS self_us, -- Mean self time of an execution.
  CASE
    WHEN compute_ps IS NULL OR memory_ps IS NULL THEN NULL
    WHEN is_unsized OR (wire_bytes > 0 AND ici_ps IS NULL) THEN NULL
    WHEN wire_bytes > 0 AND ici_ps >= memory_ps AND ici_ps >= compute_ps THEN 'ici'
    WHEN memory_ps >= compute_ps THEN 'memory'
    ELSE 'compute'
  END AS bound, -- compute, memory or ici; NULL if a peak, a cost, or what a collective sends is unknown.
  CASE
    WHEN compute_ps IS NULL OR memory_ps IS NULL THEN NULL
    WHEN is_unsized OR (wire_bytes > 0 AND ici_ps IS NULL) THEN NULL
    ELSE GREATEST(compute_ps, memory_ps, COALESCE(ici_ps, memory_ps)) / self_ps
  END AS attained, -- Share of the bound's peak; NULL if the bound is.
  executions,
  -- Share of the self time of the run's compute ops whose flops or bytes are unknown; NULL without such ops.
  unsized_share
FROM needed
