/*---
status: stable
unit: ratio
polarity: higher_is_better
grain: [run_id, phase, kind, axis]
value: overlap_ratio
ranges: {overlap_ratio: [0, 1]}
needs: [lasting_collectives]
description: >
  Share of the collectives' windows in which the device runs ops that do not communicate, summed over executions and
  devices. Idle time inside a window hides nothing, and a synchronous collective has no hidden part. Windows that
  overlap count one by one.
ccl_bench: compute_comm_overlap
---*/
SELECT
  run_id, phase, kind, axis,
  SUM(hidden_ps) / SUM(end_ps - start_ps) AS overlap_ratio, -- Hidden share.
  SUM(end_ps - start_ps) / 1e9 AS window_ms, -- Time of the windows together.
  SUM(exposed_ps) / 1e9 AS exposed_ms, -- Exposed time in them.
  SUM(end_ps - start_ps - exposed_ps - hidden_ps) / 1e9 AS idle_ms, -- Time in them in which the device runs nothing.
  -- How the windows were found - op, start/done pair, async line, start only - or mixed.
  CASE WHEN MIN(window_source) = MAX(window_source) THEN MIN(window_source) ELSE 'mixed' END AS window_source,
  COUNT(*) AS executions,
  COUNT(*) FILTER (WHERE is_async) AS async_executions -- Asynchronous ones among them.
FROM main.collectives
GROUP BY run_id, phase, kind, axis
HAVING SUM(end_ps - start_ps) > 0
