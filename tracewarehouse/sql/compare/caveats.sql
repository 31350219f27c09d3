/*---
description: >
  What a reader of a run's numbers must know: its quality flags, and what ingest inferred because no capture or manifest
  states it.
---*/
WITH layers AS (
  SELECT run_id, layer, layer_confidence
  FROM main.instructions
  WHERE layer_source = 'inferred' AND layer IS NOT NULL
)

SELECT
  run_id,
  'flag' AS kind, -- flag (of main.quality_flags) or inferred.
  flag AS name, -- The flag, or what was inferred: an axis of the mesh (NULL if it has no name), or layers.
  CAST(NULL AS INTEGER) AS value, -- Size of the axis, or number of layers; NULL for a flag.
  CAST(NULL AS DOUBLE) AS confidence, -- Confidence of the inference, from 0 to 1; NULL for a flag.
  host, -- The host that a flag is about; NULL for the whole run.
  detail -- The flag's sentence, or the reasons for what was inferred.
FROM main.quality_flags
UNION ALL
SELECT run_id, 'inferred' AS kind, axis AS name, size AS value, confidence, NULL AS host, evidence AS detail
FROM main.mesh_axes
WHERE source = 'inferred'
UNION ALL
SELECT
  run_id, 'inferred' AS kind, 'layers' AS name,
  CAST(MAX(layer) + 1 AS INTEGER) AS value,
  MIN(layer_confidence) AS confidence,
  NULL AS host, 'from what repeats in the programs; as sure as the layer of the least sure instruction' AS detail
FROM layers
GROUP BY run_id
