/*---
parameters: [runs]
reads_runs: [runs]
description: >
  Share of the time of each run and phase that faster links, memory or matrix units would save, by the factor, from stored
  values of faster_links and faster_chips.
---*/
WITH stored AS (
  SELECT
    run_id, metric,
    dimensions ->> '$.phase' AS phase,
    COALESCE(dimensions ->> '$.link', dimensions ->> '$.resource', 'unknown') AS resource,
    dimensions ->> '$.axis' AS axis,
    dimensions ->> '$.factor' AS factor,
    SUM("value" ORDER BY "value") / 100 AS saved,
    BOOL_OR(COALESCE(dimensions ->> '$.basis', 'exposed') = 'exposed') AS is_upper_bound
  FROM main.metric_values
  WHERE metric IN ('faster_links', 'faster_chips') AND LIST_CONTAINS(runs, run_id)
  GROUP BY ALL
)

SELECT
  run_id,
  metric, -- faster_links or faster_chips.
  phase,
  -- What is faster: links of a class, HBM, or matrix units.
  CASE resource
    WHEN 'hbm' THEN 'HBM'
    WHEN 'compute' THEN 'matrix units'
    WHEN 'unknown' THEN 'links'
    WHEN 'ici' THEN 'ICI links'
    WHEN 'dcn' THEN 'DCN links'
    WHEN 'die' THEN 'links of the die'
    WHEN 'nvlink' THEN 'NVLink'
    WHEN 'fabric' THEN 'Infinity Fabric'
    ELSE resource
  END AS resource,
  axis, -- Mesh axes of the collectives over the links; NULL for HBM and matrix units.
  factor, -- How many times faster: 2, 4 or infinite.
  saved, -- Share of the phase's time.
  is_upper_bound -- The share is an upper bound; false where a fit or the rules of a prediction tell the share itself.
FROM stored
