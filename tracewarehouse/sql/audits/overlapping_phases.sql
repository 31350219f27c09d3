/*---
description: >
  Phases, steps or program executions of a device or host that overlap others of their kind. What a host launches on
  several streams of a GPU may overlap.
---*/
WITH intervals AS (
  SELECT
    run_id, host, device_id, kind, name, "index", start_ps,
    MAX(end_ps) OVER (
      PARTITION BY run_id, host, device_id, kind ORDER BY start_ps, end_ps, "index"
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS previous_end_ps
  FROM main.phases
  WHERE kind IN ('phase', 'step', 'module') AND source <> 'launches'
)

SELECT
  run_id, host,
  device_id, -- The device; NULL for an interval on the host.
  kind, -- Kind of interval.
  name,
  "index", -- Its number.
  start_ps,
  previous_end_ps -- Latest end of those before it.
FROM intervals
WHERE start_ps < previous_end_ps
