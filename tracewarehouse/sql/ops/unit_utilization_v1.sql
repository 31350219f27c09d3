/*---
status: experimental
unit: ratio
polarity: higher_is_better
grain: [run_id, host, device_id, hardware_unit]
value: utilization
ranges: {utilization: [0, 1], highest: [0, 1]}
needs: [unit_counters]
description: >
  Utilization of hardware units by the performance counters of the chips, as the profiler states it. Unlike mfu it
  counts padding and recomputation as work.
notes: >
  The profiler states it of the whole capture on the planes of hosts, such as matrix_unit_utilization_percent, or
  samples it on lines of devices, such as 'MXU: % util'. Samples come at irregular times and each counts once.
  Captures do not hold the utilization of single ops.
---*/
WITH stated AS (
  SELECT
    run_id, host, CAST(NULL AS INTEGER) AS device_id,
    REGEXP_EXTRACT(name, '^(.*)_utilization_percent$', 1) AS hardware_unit,
    'plane' AS source,
    COALESCE(double_value, int_value) AS percent
  FROM main.plane_stats
  WHERE
    REGEXP_EXTRACT(name, '^(.*)_utilization_percent$', 1) <> ''
    AND COALESCE(double_value, int_value) IS NOT NULL
  UNION ALL
  SELECT
    run_id, host, device_id,
    REGEXP_EXTRACT(name, '^(.*): % util$', 1) AS hardware_unit,
    'samples' AS source,
    "value" AS percent
  FROM main.counters
  WHERE REGEXP_EXTRACT(name, '^(.*): % util$', 1) <> '' AND "value" IS NOT NULL
),

-- integers, whose sum does not depend on their order
scaled AS (
  SELECT *, CAST(FLOOR(percent * 1e9 + 5e-1) AS BIGINT) AS percent_billionths
  FROM stated
)

SELECT
  run_id, host,
  device_id, -- The device that is sampled; NULL for what a plane states.
  hardware_unit, -- Unit as the profiler names it, such as matrix_unit or MXU.
  -- Share of what the unit can do: the mean of the samples, or the largest where several planes state it.
  CASE
    WHEN source = 'samples' THEN SUM(percent_billionths) / (COUNT(*) * 1e11)
    ELSE MAX(percent) / 1e2
  END AS utilization,
  MAX(percent) / 1e2 AS highest, -- The largest of these.
  source, -- plane (of the whole capture) or samples.
  COUNT(*) AS readings -- Planes or samples.
FROM scaled
GROUP BY run_id, host, device_id, hardware_unit, source
