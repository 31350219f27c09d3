/*---
audit: overlapping_phases
description: Phases, steps or program executions of a device, or of a host, that overlap others of their kind.
columns:
  run_id: The run.
  host: The host.
  device_id: The device; NULL on the host's clock.
  kind: Kind of interval.
  name: Its name.
  index: Its number.
  start_ps: Its start.
  previous_end_ps: Latest end of those before it.
---*/
WITH intervals AS (
  SELECT
    p.run_id AS run_id,
    p.host AS host,
    p.device_id AS device_id,
    p.kind AS kind,
    p.name AS name,
    p."index" AS "index",
    p.start_ps AS start_ps,
    MAX(p.end_ps) OVER (
      PARTITION BY p.run_id, p.host, p.device_id, p.kind ORDER BY p.start_ps, p.end_ps, p."index"
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS previous_end_ps
  FROM main.phases AS p
  WHERE p.kind IN ('phase', 'step', 'module')
)

SELECT
  i.run_id AS run_id,
  i.host AS host,
  i.device_id AS device_id,
  i.kind AS kind,
  i.name AS name,
  i."index" AS "index",
  i.start_ps AS start_ps,
  i.previous_end_ps AS previous_end_ps
FROM intervals AS i
WHERE i.start_ps < i.previous_end_ps
