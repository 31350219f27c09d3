/*---
description: >
  What each HLO instruction costs, and the time that each resource would need at its peak for all its executions on all
  devices. The resource that needs longest is its bound.
notes: >
  metrics.roofline says what counts as the cost and the peak. A row is an instruction that runs and has a known cost.
  Halves of asynchronous ops have no row.
---*/
WITH timed AS (
  SELECT
    run_id, o.instruction_id,
    SUM(o.self_ps) AS self_ps,
    CAST(SUM(o.ops) AS BIGINT) AS executions,
    SUM(o.flops * o.ops) AS flops,
    SUM(o.ops) FILTER (WHERE o.flops IS NOT NULL) AS counted_ops,
    SUM(o.self_ps) FILTER (WHERE o.flops IS NOT NULL) AS counted_ps,
    SUM(o.bytes_accessed * o.ops) AS bytes_accessed,
    SUM(o.ops) FILTER (WHERE o.bytes_accessed IS NOT NULL) AS sized_ops,
    SUM(o.hbm_bytes_accessed * o.ops) AS hbm_bytes_accessed,
    COUNT(*) FILTER (WHERE o.flops IS NULL OR o.bytes_accessed IS NULL) AS unsized,
    COALESCE(SUM(o.self_ps) FILTER (WHERE o.flops IS NULL OR o.bytes_accessed IS NULL), 0) AS unsized_ps,
    MIN(k.peak_flops_per_s) AS peak_flops_per_s,
    MIN(d.peak_hbm_gbps) AS peak_hbm_gbps
  FROM models.instruction_time AS o
  LEFT JOIN main.devices AS d USING (run_id, device_id)
  LEFT JOIN models.device_peaks AS k
    ON
      o.run_id = k.run_id
      AND o.device_id = k.device_id
      AND COALESCE(o.product_type, 'bf16') = k.product_type
  GROUP BY run_id, o.instruction_id
),

shares AS (
  SELECT run_id, SUM(t.unsized_ps) / NULLIF(SUM(t.self_ps), 0) AS unsized_share
  FROM timed AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  WHERE i.op_class = 'compute'
  GROUP BY run_id
),

-- what an instruction sends, over links of one class
sent AS (
  SELECT
    run_id, c.instruction_id,
    CASE WHEN COUNT(c.wire_bytes) = COUNT(*) THEN CAST(SUM(c.wire_bytes) AS BIGINT) END AS wire_bytes,
    MIN(COALESCE(c.link, d.link, '')) AS first_link,
    MAX(COALESCE(c.link, d.link, '')) AS last_link,
    MIN(
      CASE
        WHEN c.link = 'die' THEN d.peak_die_gbps
        WHEN c.link IS DISTINCT FROM 'dcn' THEN COALESCE(d.peak_ici_gbps, d.peak_link_gbps)
      END
    ) AS peak_gbps
  FROM main.collectives AS c
  LEFT JOIN main.devices AS d USING (run_id, device_id)
  GROUP BY run_id, c.instruction_id
),

needed AS (
  SELECT
    run_id, instruction_id, i.name, i.category, t.flops, t.counted_ops, t.counted_ps, t.bytes_accessed, t.sized_ops,
    s.first_link,
    (i.collective IS NOT NULL AND s.wire_bytes IS NULL) OR (i.op_class = 'compute' AND t.unsized > 0) AS is_unsized,
    h.unsized_share, s.wire_bytes, t.self_ps, t.executions,
    CAST(COALESCE(t.flops, 0) AS DOUBLE) * (1e12 / NULLIF(t.peak_flops_per_s, 0)) AS compute_ps,
    CAST(COALESCE(t.hbm_bytes_accessed, 0) AS DOUBLE) * (1e3 / NULLIF(t.peak_hbm_gbps, 0)) AS memory_ps,
    CASE
      WHEN s.first_link = s.last_link THEN s.wire_bytes * (1e3 / NULLIF(s.peak_gbps, 0))
      WHEN s.wire_bytes IS NULL THEN 0
    END AS link_ps
  FROM timed AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  LEFT JOIN sent AS s USING (run_id, instruction_id)
  LEFT JOIN shares AS h USING (run_id)
  WHERE t.self_ps > 0 AND i.async_role IS NULL AND (t.flops > 0 OR t.bytes_accessed > 0)
)

SELECT
  run_id, instruction_id, name, category,
  -- Operations per second of a device, in the executions whose operations are known; NULL without any.
  CAST(flops AS DOUBLE) * 1e12 / NULLIF(counted_ps, 0) AS flops_per_s,
  CAST((2 * flops + counted_ops) // (2 * counted_ops) AS BIGINT) AS flops, -- Operations of an execution; their mean.
  -- Memory traffic of an execution; their mean.
  CAST((2 * bytes_accessed + sized_ops) // (2 * sized_ops) AS BIGINT) AS bytes_accessed,
  wire_bytes, -- Bytes that all executions send; NULL if unknown or not a collective.
  -- Operations per byte of memory traffic.
  CAST(flops AS DOUBLE) * sized_ops / (NULLIF(CAST(bytes_accessed AS DOUBLE), 0) * counted_ops) AS intensity,
  CAST(self_ps AS BIGINT) AS self_ps, -- Self time of all executions.
  executions,
  -- Share of the self time of the run's compute ops whose flops or bytes are unknown; NULL without such ops.
  unsized_share,
  compute_ps, -- Time at the peak of the matrix units; NULL where the peak is not known.
  memory_ps, -- Time at the peak of the memory; NULL where the peak is not known.
  link_ps, -- Time at the peak of the links; 0 for an instruction that sends nothing, NULL where the peak is not known.
  CASE
    WHEN compute_ps IS NULL OR memory_ps IS NULL THEN NULL
    WHEN is_unsized OR (wire_bytes > 0 AND link_ps IS NULL) THEN NULL
    WHEN wire_bytes > 0 AND link_ps >= memory_ps AND link_ps >= compute_ps THEN NULLIF(first_link, '')
    WHEN memory_ps >= compute_ps THEN 'memory'
    ELSE 'compute'
  END AS bound, -- compute, memory, or the class of the links; NULL if a peak, a cost or the sent bytes are unknown.
  -- Time at the peak of the bound; NULL if a peak, a cost or the sent bytes are unknown.
  CASE
    WHEN is_unsized OR compute_ps IS NULL OR memory_ps IS NULL OR (wire_bytes > 0 AND link_ps IS NULL) THEN NULL
    ELSE GREATEST(compute_ps, memory_ps, COALESCE(link_ps, memory_ps))
  END AS bound_ps
FROM needed
