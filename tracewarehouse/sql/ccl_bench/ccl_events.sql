/*---
description: >
  The complete events (X) of a run's Chrome trace as CCL-Bench reads them, only for the ccl_* metrics.
notes: >
  They come from every line, on devices and on the host, so programs, steps and containers count in addition to the
  ops in them. Asynchronous ops and counter samples are other kinds of events there. Their order in the file is that
  of event_id. Kineto traces and exports of Nsight Systems are not read here: see ccl_kernels.
---*/
WITH instruction_stats AS (
  SELECT
    run_id, instruction_id,
    MAX(string_value) FILTER (WHERE name IN ('display_name', 'event_name')) AS event_name,
    MAX(int_value) FILTER (WHERE name = 'raw_bytes_accessed') AS raw_bytes_accessed
  FROM main.instruction_stats
  WHERE name IN ('display_name', 'event_name', 'raw_bytes_accessed')
  GROUP BY run_id, instruction_id
),

read_elsewhere AS (
  SELECT run_id, format
  FROM main.runs
  WHERE format IN ('kineto', 'nsys')
),

exported AS (
  SELECT
    run_id, o.event_id, o.host, o.plane,
    CASE WHEN o.plane LIKE '/device:%' THEN o.device_id END AS device_id,
    o.plane LIKE '/device:%' AND o.plane NOT LIKE '/device:GPU:%' AS has_facts,
    COALESCE(s.event_name, i.name) AS name,
    i.category, o.start_ps, o.duration_ps, o.device_offset_ps, o.device_duration_ps,
    COALESCE(o.bytes_accessed, i.bytes_accessed, s.raw_bytes_accessed) AS copied_bytes,
    COALESCE(o.bytes_accessed, i.bytes_accessed) AS bytes_accessed,
    COALESCE(o.model_flops, i.model_flops) AS model_flops
  FROM main.ops AS o
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  LEFT JOIN instruction_stats AS s USING (run_id, instruction_id)
  LEFT JOIN read_elsewhere AS x USING (run_id)
  WHERE
    x.format IS NULL
    AND o.line <> 'Async XLA Ops'
    AND (o.duration_ps <> 0 OR (o.line <> '_counters_' AND o.line NOT LIKE 'counters_%'))
  UNION ALL
  SELECT
    run_id, e.event_id, e.host, e.plane, NULL AS device_id, FALSE AS has_facts, e.name, NULL AS category,
    e.start_ps, e.duration_ps, NULL AS device_offset_ps, NULL AS device_duration_ps, NULL AS copied_bytes,
    NULL AS bytes_accessed, NULL AS model_flops
  FROM main.host_events AS e
  LEFT JOIN read_elsewhere AS x USING (run_id)
  WHERE
    x.format IS NULL
    AND (e.duration_ps <> 0 OR (e.thread <> '_counters_' AND e.thread NOT LIKE 'counters_%'))
),

processes AS (
  SELECT run_id, plane
  FROM main.lines
  GROUP BY run_id, plane
  UNION ALL
  SELECT run_id, plane
  FROM main.ops
  GROUP BY run_id, plane
),

with_tpus AS (
  SELECT run_id
  FROM processes
  WHERE plane LIKE '%/device:TPU:%'
  GROUP BY run_id
)

SELECT
  run_id, e.event_id, e.host,
  e.plane, -- The plane, which is a process of the trace.
  e.device_id, -- The device, on a plane of a device.
  e.plane LIKE '%/device:TPU:%' AS is_tpu, -- On a TPU.
  e.plane LIKE '%/device:TPU:%' OR t.run_id IS NULL AS counts, -- On a TPU, or any event of a run without TPUs.
  e.name, -- Name of the event.
  CASE WHEN e.has_facts THEN e.category END AS category, -- The profiler's hlo_category.
  e.start_ps, -- Start since the run's profile start.
  e.duration_ps,
  e.device_offset_ps, -- Start on the device's own clock.
  e.device_duration_ps, -- Duration on the device's own clock.
  -- What CCL-Bench takes for the duration, in 10^-6 of its unit: it mixes microseconds of events without a duration on
  -- the device's clock with nanoseconds of the others.
  COALESCE(e.device_duration_ps * 1000, e.duration_ps) AS mixed_duration,
  CASE WHEN e.has_facts THEN e.copied_bytes END AS copied_bytes, -- bytes_accessed, or else raw_bytes_accessed.
  CASE WHEN e.has_facts THEN e.bytes_accessed END AS bytes_accessed, -- Memory traffic that the profiler states.
  CASE WHEN e.has_facts THEN e.model_flops END AS model_flops -- Operations that the profiler states.
FROM exported AS e
LEFT JOIN with_tpus AS t USING (run_id)
