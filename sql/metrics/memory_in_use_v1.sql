/*---
metric: memory_in_use
version: 1
status: experimental
unit: bytes
polarity: lower_is_better
grain: [run_id, host, allocator]
value: peak_bytes
needs: [allocations]
description: >
  Most memory of an allocator that is in use at once during the capture, as the profiler states it at each allocation and
  each release: the bytes allocated and those reserved for the stacks of programs. What is in use all the time without
  either is known only where one of them happens.
changed: First version.
---*/
WITH stated AS (
  SELECT
    run_id,
    e.host,
    e.event_id,
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
),

used AS (
  SELECT
    run_id,
    host,
    event_id,
    COALESCE(allocator_name, CAST(index_on_host AS VARCHAR)) AS allocator,
    is_allocation,
    lifetime_peak_bytes,
    allocated_bytes,
    COALESCE(reserved_bytes, 0) AS reserved_bytes,
    allocated_bytes + COALESCE(reserved_bytes, 0) AS used_bytes,
    allocated_bytes + COALESCE(reserved_bytes, 0) + available_bytes AS capacity_bytes
  FROM stated
  WHERE allocated_bytes IS NOT NULL
),

placed AS (
  SELECT
    run_id,
    host,
    allocator,
    is_allocation,
    lifetime_peak_bytes,
    allocated_bytes,
    reserved_bytes,
    used_bytes,
    capacity_bytes,
    ROW_NUMBER() OVER (PARTITION BY run_id, host, allocator ORDER BY used_bytes DESC, event_id) AS place
  FROM used
)

SELECT
  run_id, -- The run.
  host, -- The host.
  allocator, -- Name of the allocator; else the device's number on the host; NULL where neither is stated.
  MAX(used_bytes) AS peak_bytes, -- Most in use at once, allocated and reserved.
  MIN(allocated_bytes) FILTER (WHERE place = 1) AS peak_allocated_bytes, -- Allocated at that moment.
  MIN(reserved_bytes) FILTER (WHERE place = 1) AS peak_reserved_bytes, -- Reserved at that moment.
  MIN(capacity_bytes) FILTER (WHERE place = 1) AS capacity_bytes, -- In use or free at that moment; NULL where not known.
  MAX(lifetime_peak_bytes) AS lifetime_peak_bytes, -- Most allocated since the process began; NULL where not known.
  CAST(SUM(is_allocation) AS BIGINT) AS allocations, -- Allocations in the capture.
  COUNT(*) - CAST(SUM(is_allocation) AS BIGINT) AS releases -- Releases in the capture.
FROM placed
GROUP BY run_id, host, allocator
