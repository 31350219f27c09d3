/*---
status: experimental
unit: ratio
polarity: none
grain: [run_id, phase, layer]
value: share
ranges: {share: [0, 1], links_share: [0, 1], memory_share: [0, 1], compute_share: [0, 1], unknown_share: [0, 1]}
needs: [layers, bounded_ops]
description: >
  The resource that each transformer layer uses most, and its share of the layer's self time on all devices. A collective
  uses the links, a copy the memory. Any other op uses the matrix units or the memory, whichever bounds it in the roofline.
notes: >
  A collective counts with its waiting, and so does the wait for a transfer between memories. An op without a known bound,
  such as a Pallas kernel whose cost is not known, counts as unknown. Ops of no layer have a row of their own. A run
  without any known bound has no row.
---*/
WITH bounded AS (
  SELECT run_id
  FROM models.instruction_bounds AS b
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  WHERE b.bound_ps > 0 AND i.op_class <> 'communication'
  GROUP BY run_id
),

known AS (
  SELECT run_id
  FROM models.instruction_time
  WHERE layer IS NOT NULL OR part IS NOT NULL
  GROUP BY run_id
),

used AS (
  SELECT
    run_id, t.phase, t.layer, t.self_ps, CASE
      WHEN t.op_class = 'communication' THEN 'links'
      WHEN t.op_class = 'copy' THEN 'memory'
      WHEN b.bound NOT IN ('compute', 'memory') THEN 'links'
      ELSE b.bound
    END AS resource
  FROM models.instruction_time AS t
  INNER JOIN bounded USING (run_id)
  INNER JOIN known USING (run_id)
  LEFT JOIN models.instruction_bounds AS b USING (run_id, instruction_id)
),

summed AS (
  SELECT
    run_id, phase, layer,
    SUM(self_ps) AS self_ps,
    COALESCE(SUM(self_ps) FILTER (WHERE resource = 'links'), 0) AS links_ps,
    COALESCE(SUM(self_ps) FILTER (WHERE resource = 'memory'), 0) AS memory_ps,
    COALESCE(SUM(self_ps) FILTER (WHERE resource = 'compute'), 0) AS compute_ps,
    COALESCE(SUM(self_ps) FILTER (WHERE resource IS NULL), 0) AS unknown_ps
  FROM used
  GROUP BY run_id, phase, layer
)

SELECT
  run_id, phase,
  layer, -- The layer, from 0; NULL for the ops of none.
  -- links, memory, compute or unknown.
  CASE
    WHEN links_ps >= GREATEST(memory_ps, compute_ps, unknown_ps) THEN 'links'
    WHEN memory_ps >= GREATEST(compute_ps, unknown_ps) THEN 'memory'
    WHEN compute_ps >= unknown_ps THEN 'compute'
    ELSE 'unknown'
  END AS bottleneck,
  GREATEST(links_ps, memory_ps, compute_ps, unknown_ps) / CAST(self_ps AS DOUBLE) AS share, -- Its share of the self time.
  links_ps / CAST(self_ps AS DOUBLE) AS links_share, -- Share of collectives.
  memory_ps / CAST(self_ps AS DOUBLE) AS memory_share, -- Share of copies and of ops that the memory bounds.
  compute_ps / CAST(self_ps AS DOUBLE) AS compute_share, -- Share of ops that the matrix units bound.
  unknown_ps / CAST(self_ps AS DOUBLE) AS unknown_share -- Share of ops whose bound is not known.
FROM summed
WHERE self_ps > 0
