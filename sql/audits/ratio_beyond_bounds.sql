/*---
audit: ratio_beyond_bounds
description: A share of a whole, as a metric states it, that is negative or above 1.
---*/
WITH ratios AS (
  SELECT run_id, 'communication_fraction' AS metric, phase, max_fraction AS ratio
  FROM metrics.communication_fraction_v1
  UNION ALL
  SELECT run_id, 'copy_overhead' AS metric, phase, overhead AS ratio
  FROM metrics.copy_overhead_v1
  UNION ALL
  SELECT run_id, 'device_idle' AS metric, phase, idle_ratio AS ratio
  FROM metrics.device_idle_v1
  UNION ALL
  SELECT run_id, 'host_gap' AS metric, phase, gap_ratio AS ratio
  FROM metrics.host_gap_v1
  UNION ALL
  SELECT run_id, 'mfu' AS metric, phase, mfu AS ratio
  FROM metrics.mfu_v1
  UNION ALL
  SELECT run_id, 'moe_fraction' AS metric, phase, fraction AS ratio
  FROM metrics.moe_fraction_v1
  UNION ALL
  SELECT run_id, 'op_time_share' AS metric, phase, share AS ratio
  FROM metrics.op_time_share_v1
  UNION ALL
  SELECT run_id, 'overlap_ratio' AS metric, phase, overlap_ratio AS ratio
  FROM metrics.overlap_ratio_v1
  UNION ALL
  SELECT run_id, 'pipeline_bubble' AS metric, phase, bubble_ratio AS ratio
  FROM metrics.pipeline_bubble_v1
)

SELECT
  run_id, -- The run.
  metric, -- The metric.
  phase, -- Phase; NULL for the steps of none.
  ratio -- Its value.
FROM ratios
WHERE ratio < -1e-9 OR ratio > 1 + 1e-9
