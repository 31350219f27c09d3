/*---
metric: unit_utilization
version: 1
status: experimental
unit: ratio
polarity: higher_is_better
grain: [run_id, host, hardware_unit]
value: utilization
ranges: {utilization: [0, 1]}
needs: [unit_counters]
description: >
  Utilization of hardware units over the whole capture, by the performance counters of the chips. Unlike mfu it counts
  all work of the unit, padding and recomputation included.
notes: >
  The profiler states it on the planes of hosts, such as matrix_unit_utilization_percent. Captures do not hold the
  utilization of single ops.
changed: First version.
---*/
WITH stated AS (
  SELECT
    run_id, host,
    REGEXP_EXTRACT(name, '^(.*)_utilization_percent$', 1) AS hardware_unit,
    COALESCE(double_value, int_value) AS percent
  FROM main.plane_stats
  WHERE name LIKE '%_utilization_percent' AND COALESCE(double_value, int_value) IS NOT NULL
)

SELECT
  run_id, host,
  hardware_unit, -- Unit as the profiler names it, such as matrix_unit.
  MAX(percent) / 1e2 AS utilization, -- Share of what the unit can do; the largest where several planes state it.
  COUNT(*) AS planes -- Planes that state it.
FROM stated
GROUP BY run_id, host, hardware_unit
