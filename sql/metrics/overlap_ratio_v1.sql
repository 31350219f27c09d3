/*---
metric: overlap_ratio
version: 1
status: stable
unit: ratio
polarity: higher_is_better
grain: [run_id, phase, kind, axis]
value: overlap_ratio
requires: SELECT c.run_id FROM main.collectives AS c WHERE c.end_ps > c.start_ps
description: >
  Share of the collectives' windows that is hidden behind other work: 1 - exposed / window, summed over executions and
  devices. A synchronous collective hides nothing. Windows that overlap count each.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  kind: Kind of collective.
  axis: Mesh axes of its groups.
  overlap_ratio: Hidden share.
  window_ms: Time of the windows together.
  exposed_ms: Exposed time in them.
  window_source: How the windows were found - op, start/done pair, async line, start only - or mixed.
  executions: Executions on all devices.
  async_executions: Those that are asynchronous.
changed: First version.
ccl_bench: compute_comm_overlap
---*/
SELECT
  c.run_id AS run_id,
  c.phase AS phase,
  c.kind AS kind,
  c.axis AS axis,
  CAST(SUM(c.end_ps - c.start_ps - c.exposed_ps) AS DOUBLE) / CAST(SUM(c.end_ps - c.start_ps) AS DOUBLE)
    AS overlap_ratio,
  CAST(SUM(c.end_ps - c.start_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS window_ms,
  CAST(SUM(c.exposed_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS exposed_ms,
  CASE WHEN MIN(c.window_source) = MAX(c.window_source) THEN MIN(c.window_source) ELSE 'mixed' END AS window_source,
  COUNT(*) AS executions,
  CAST(SUM(CASE WHEN c.is_async THEN 1 ELSE 0 END) AS BIGINT) AS async_executions
FROM main.collectives AS c
GROUP BY c.run_id, c.phase, c.kind, c.axis
HAVING SUM(c.end_ps - c.start_ps) > 0
