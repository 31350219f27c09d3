/*---
parameters:
  runs: The runs, as a list of ids; NULL for all.
optional: [runs]
description: >
  The values that CCL-Bench publishes for rows that were imported without a trace, in its own units and by its own
  definitions.
columns:
  name: Name of the run and of the row.
  metric: CCL-Bench's name of the metric; the ccl_ metrics say what it means.
  value: The published value.
---*/
WITH published AS (
  SELECT run_id, name, card -> '$.published' AS listed
  FROM main.runs
  WHERE runs IS NULL OR run_id IN (SELECT UNNEST(runs))
),

named AS (
  SELECT run_id, name, listed, UNNEST(JSON_KEYS(listed)) AS metric
  FROM published
)

SELECT run_id, name, metric, CAST(listed ->> metric AS DOUBLE) AS value
FROM named
