/*---
description: >
  Where each run comes from: the capture it was read from, and the software that recorded it and that read it.
---*/
WITH flags AS (
  SELECT run_id, COUNT(*) AS flags
  FROM main.quality_flags
  GROUP BY run_id
)

SELECT
  r.run_id, r.name,
  r.origin, -- recorded, compiled (a program that did not run) or predicted.
  r.format, -- Format of its capture.
  r.source_digest, -- Digest of the files of its capture.
  r.source_bytes, -- Size of these files.
  r.profile_start_ns, -- Start of the profile, in Unix nanoseconds.
  r.framework, -- Framework that recorded it.
  r.ingest_version, -- Version of tracewarehouse that read it.
  r.schema_version, -- Version of the tables.
  COALESCE(f.flags, 0) AS flags -- Number of its quality flags; main.quality_flags has them.
FROM main.runs AS r
LEFT JOIN flags AS f USING (run_id)
