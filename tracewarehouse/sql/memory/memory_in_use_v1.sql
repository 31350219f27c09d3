/*---
status: experimental
unit: bytes
polarity: lower_is_better
grain: [run_id, host, allocator]
value: peak_bytes
needs: [allocations]
description: >
  Most memory of an allocator in use at once during the capture: allocated bytes and bytes reserved for the stacks of
  programs. The profiler states it at each allocation and release, so an allocator without either in the capture has no
  row.
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
