/*---
description: >
  Copies as CCL-Bench finds them, only for the ccl_* metrics. In file order, a copy-done.N ends the last open
  copy-start.N before it, whatever the device. Halves without a number are left out.
---*/
WITH halves AS (
  SELECT
    run_id, event_id, is_tpu,
    NULLIF(REGEXP_EXTRACT(name, 'copy-start[.]([0-9]+)', 1), '') AS start_number,
    NULLIF(REGEXP_EXTRACT(name, 'copy-done[.]([0-9]+)', 1), '') AS done_number,
    device_offset_ps AS offset_ps, copied_bytes AS bytes
  FROM models.ccl_events
  WHERE device_offset_ps IS NOT NULL AND name LIKE '%copy-%'
),

-- once for the bandwidth, which ignores a start without bytes, and once for the overhead, which counts only TPUs
used AS (
  SELECT
    run_id, event_id, 'bandwidth' AS purpose,
    COALESCE(start_number, done_number) AS number,
    start_number IS NOT NULL AS is_start,
    offset_ps, bytes
  FROM halves
  WHERE (start_number IS NOT NULL AND bytes IS NOT NULL) OR (start_number IS NULL AND done_number IS NOT NULL)
  UNION ALL
  SELECT
    run_id, event_id, 'overhead' AS purpose,
    COALESCE(start_number, done_number) AS number,
    start_number IS NOT NULL AS is_start,
    offset_ps, bytes
  FROM halves
  WHERE is_tpu AND (start_number IS NOT NULL OR done_number IS NOT NULL)
),

paired AS (
  SELECT
    run_id, purpose, event_id, is_start, offset_ps AS end_offset_ps,
    LAG(CASE WHEN is_start THEN offset_ps END) OVER (PARTITION BY run_id, purpose, number ORDER BY event_id)
      AS start_offset_ps,
    LAG(bytes) OVER (PARTITION BY run_id, purpose, number ORDER BY event_id) AS bytes
  FROM used
)

SELECT
  run_id,
  purpose, -- bandwidth or overhead, which pair by slightly different rules.
  event_id, -- The done half.
  start_offset_ps, -- Start of the start half on the device's own clock.
  end_offset_ps, -- Start of the done half on the device's own clock.
  bytes -- Memory traffic of the start half.
FROM paired
WHERE NOT is_start AND end_offset_ps > start_offset_ps
