/*---
metric: overlap_ratio
version: 1
status: stable
unit: ratio
polarity: higher_is_better
grain: [run_id, phase, kind, axis]
value: overlap_ratio
ranges: {overlap_ratio: [0, 1]}
needs: [lasting_collectives]
description: >
  Share of the collectives' windows that other work hides: 1 - exposed / window, summed over executions and devices. A
  synchronous collective hides nothing. Each of several overlapping windows counts.
changed: First version.
ccl_bench: compute_comm_overlap
---*/
SELECT
  run_id, phase, kind, axis,
  SUM(end_ps - start_ps - exposed_ps) / SUM(end_ps - start_ps) AS overlap_ratio, -- Hidden share.
  SUM(end_ps - start_ps) / 1e9 AS window_ms, -- Time of the windows together.
  SUM(exposed_ps) / 1e9 AS exposed_ms, -- Exposed time in them.
  -- How the windows were found - op, start/done pair, async line, start only - or mixed.
  CASE WHEN MIN(window_source) = MAX(window_source) THEN MIN(window_source) ELSE 'mixed' END AS window_source,
  COUNT(*) AS executions,
  COUNT(*) FILTER (WHERE is_async) AS async_executions -- Asynchronous ones among them.
FROM main.collectives
GROUP BY run_id, phase, kind, axis
HAVING SUM(end_ps - start_ps) > 0
