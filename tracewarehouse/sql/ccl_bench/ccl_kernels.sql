/*---
description: >
  The kernels of GPUs as CCL-Bench reads them from a Kineto trace or an export of Nsight Systems, only for the ccl_*
  metrics. The driver's copies and sets are not kernels.
notes: >
  CCL-Bench computes with the file's microseconds as doubles. A month after the file's zero, two neighbouring doubles
  are half a nanosecond apart. Start and end are such doubles, counted from the start of the profile.
---*/
WITH origins AS (
  SELECT
    run_id, h.host, h.clock_offset_ps,
    h.profile_start_ns - MAX(s.int_value) AS origin_ns
  FROM main.hosts AS h
  INNER JOIN main.plane_stats AS s USING (run_id, host)
  WHERE s.name = 'base_time_ns'
  GROUP BY run_id, h.host, h.clock_offset_ps, h.profile_start_ns
),

timed AS (
  SELECT
    run_id, r.format, o.host, o.device_id, o.event_id, o.instruction_id, i.name, o.start_ps, o.duration_ps,
    t.clock_offset_ps,
    CAST(t.origin_ns AS DOUBLE) / 1e3 AS origin_us,
    CAST(t.origin_ns + (o.start_ps - t.clock_offset_ps) // 1000 AS DOUBLE) / 1e3 AS at_us,
    o.duration_ps / 1e6 AS length_us
  FROM main.runs AS r
  INNER JOIN main.ops AS o USING (run_id)
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  LEFT JOIN origins AS t USING (run_id, host)
  WHERE r.format IN ('kineto', 'nsys') AND o.line LIKE 'Stream #%' AND NOT REGEXP_MATCHES(i.name, '^Mem(cpy|set)')
)

SELECT
  run_id,
  format = 'nsys' AS is_nsys, -- From an export of Nsight Systems; CCL-Bench reads no steps of these.
  host, -- The file, which in a Kineto trace is one rank.
  device_id, event_id,
  instruction_id, -- Its instruction, which holds what it says of a collective.
  name, -- Name of the kernel.
  LOWER(name) AS lower_name, -- The same in lower case.
  -- Start since the run's profile start.
  COALESCE(clock_offset_ps + CAST(FLOOR((at_us - origin_us) * 1e6 + 5e-1) AS BIGINT), start_ps) AS start_ps,
  -- End.
  COALESCE(
    clock_offset_ps + CAST(FLOOR((at_us + length_us - origin_us) * 1e6 + 5e-1) AS BIGINT), start_ps + duration_ps
  ) AS end_ps,
  duration_ps
FROM timed
