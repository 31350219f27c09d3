/*---
model: provenance
description: >
  Where each run comes from: the capture it was read from, and the software that recorded it and that read it.
---*/
WITH flags AS (
  SELECT run_id, COUNT(*) AS flags
  FROM main.quality_flags
  GROUP BY run_id
)

SELECT
  r.run_id,
  r.name,
  r.origin, -- recorded, compiled (a program that did not run) or predicted.
  r.format,
  r.source_digest,
  r.source_bytes,
  r.profile_start_ns,
  r.framework,
  r.ingest_version,
  r.schema_version,
  COALESCE(f.flags, 0) AS flags -- Number of its quality flags; main.quality_flags has them.
FROM main.runs AS r
LEFT JOIN flags AS f USING (run_id)
