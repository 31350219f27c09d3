/*---
parameters: [runs]
reads_runs: [runs]
description: The stored metric values, each with its most common dimensions and the main facts of its run.
---*/
WITH stored AS (
  SELECT *
  FROM main.metric_values
  WHERE LIST_CONTAINS(runs, run_id)
)

SELECT
  run_id, r.name,
  COALESCE(r.model, r.model_family, 'unknown') AS model, -- Model or model family; unknown where neither is known.
  r.mesh, -- Mesh; NULL where it is not known.
  r.batch_size,
  COALESCE(r.framework, 'unknown') AS framework, -- What ran the model, with its version; unknown where it is not known.
  r.profile_start_ns, -- Start of the capture, Unix time.
  v.metric, v.version,
  v.dimensions ->> '$.phase' AS phase, -- Phase; NULL without one, and for a metric without phases.
  v.dimensions ->> '$.clock' AS clock, -- The clock, host or device; NULL for a metric of no clock.
  v.dimensions ->> '$.factor' AS factor, -- How many times the bandwidth of today's links; NULL for a metric without.
  v.value, -- The value.
  v.unit -- Its unit.
FROM stored AS v
INNER JOIN main.runs AS r USING (run_id)
