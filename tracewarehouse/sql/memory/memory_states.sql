/*---
description: >
  Each allocation and each release of memory, with the allocator's memory in use from then on and its size, as the
  profiler states them.
---*/
WITH stated AS (
  SELECT
    run_id, e.host, e.event_id,
    MIN(e.start_ps) AS at_ps,
    MIN(s.string_value) FILTER (WHERE s.name = 'allocator_name') AS allocator_name,
    MIN(s.int_value) FILTER (WHERE s.name = 'index_on_host') AS index_on_host,
    MIN(s.int_value) FILTER (WHERE s.name = 'bytes_allocated') AS allocated_bytes,
    MIN(s.int_value) FILTER (WHERE s.name = 'bytes_reserved') AS reserved_bytes,
    MIN(s.int_value) FILTER (WHERE s.name = 'bytes_available') AS available_bytes,
    MIN(s.int_value) FILTER (WHERE s.name = 'peak_bytes_in_use') AS lifetime_peak_bytes,
    MAX(CASE WHEN e.name = 'MemoryAllocation' THEN 1 ELSE 0 END) AS is_allocation
  FROM main.host_events AS e
  INNER JOIN main.event_stats AS s USING (run_id, event_id)
  WHERE
    e.name IN ('MemoryAllocation', 'MemoryDeallocation')
    AND s.name IN (
      'allocator_name', 'index_on_host', 'bytes_allocated', 'bytes_reserved', 'bytes_available', 'peak_bytes_in_use'
    )
  GROUP BY run_id, e.host, e.event_id
)

SELECT
  run_id, host,
  event_id, -- The allocation or release.
  -- Name of the allocator; else the device's number on the host; NULL where neither is stated.
  COALESCE(allocator_name, CAST(index_on_host AS VARCHAR)) AS allocator,
  at_ps, -- When it happened, since the run's profile start.
  is_allocation, -- 1 for an allocation, 0 for a release.
  allocated_bytes, -- Bytes allocated.
  COALESCE(reserved_bytes, 0) AS reserved_bytes, -- Bytes reserved for the stacks of programs.
  allocated_bytes + COALESCE(reserved_bytes, 0) AS used_bytes, -- In use: allocated and reserved.
  -- In use or free; NULL where not known.
  allocated_bytes + COALESCE(reserved_bytes, 0) + available_bytes AS capacity_bytes,
  lifetime_peak_bytes -- Most allocated since the process began; NULL where not known.
FROM stated
WHERE allocated_bytes IS NOT NULL
