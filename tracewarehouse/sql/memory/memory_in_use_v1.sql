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
WITH placed AS (
  SELECT
    * EXCLUDE (event_id, at_ps),
    ROW_NUMBER() OVER (PARTITION BY run_id, host, allocator ORDER BY used_bytes DESC, event_id) AS place
  FROM models.memory_states
)

SELECT
  run_id, host,
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
