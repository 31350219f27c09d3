/*---
status: compatibility
unit: GB
polarity: lower_is_better
grain: [run_id, kind]
value: volume_gb
description: >
  Reproduces CCL-Bench's collective_vol_*_gb with its faults, to explain a published number; use traffic_volume
  instead.
notes: >
  It sums the profiler's bytes_accessed of events whose category is exactly a collective's, over all devices and the
  whole capture. That is memory traffic, for an all-reduce at least twice the message, and not what goes over links. A
  kind without an event has 0. In Kineto traces it sums the elements that go in times their size over the first rank
  alone, and has no value for exports of Nsight Systems.
ccl_bench: collective_vol
---*/
WITH sized AS (
  SELECT run_id, category AS kind, bytes_accessed AS bytes
  FROM models.ccl_events
  UNION ALL
  SELECT run_id, kind, bytes
  FROM models.ccl_messages
  WHERE host_index = 0
),

added AS (
  SELECT
    run_id,
    COALESCE(SUM(bytes) FILTER (WHERE kind = 'all-reduce'), 0) AS all_reduce_bytes,
    COUNT(bytes) FILTER (WHERE kind = 'all-reduce') AS all_reduces,
    COALESCE(SUM(bytes) FILTER (WHERE kind = 'all-gather'), 0) AS all_gather_bytes,
    COUNT(bytes) FILTER (WHERE kind = 'all-gather') AS all_gathers,
    COALESCE(SUM(bytes) FILTER (WHERE kind = 'reduce-scatter'), 0) AS reduce_scatter_bytes,
    COUNT(bytes) FILTER (WHERE kind = 'reduce-scatter') AS reduce_scatters,
    COALESCE(SUM(bytes) FILTER (WHERE kind = 'all-to-all'), 0) AS all_to_all_bytes,
    COUNT(bytes) FILTER (WHERE kind = 'all-to-all') AS all_to_alls
  FROM sized
  GROUP BY run_id
),

volumes AS (
  SELECT run_id, 'all-reduce' AS kind, all_reduce_bytes AS bytes, all_reduces AS events
  FROM added
  UNION ALL
  SELECT run_id, 'all-gather' AS kind, all_gather_bytes AS bytes, all_gathers AS events
  FROM added
  UNION ALL
  SELECT run_id, 'reduce-scatter' AS kind, reduce_scatter_bytes AS bytes, reduce_scatters AS events
  FROM added
  UNION ALL
  SELECT run_id, 'all-to-all' AS kind, all_to_all_bytes AS bytes, all_to_alls AS events
  FROM added
  UNION ALL
  SELECT
    run_id, 'total' AS kind,
    all_reduce_bytes + all_gather_bytes + reduce_scatter_bytes + all_to_all_bytes AS bytes,
    all_reduces + all_gathers + reduce_scatters + all_to_alls AS events
  FROM added
)

SELECT
  run_id,
  kind, -- The category, or total for all four.
  bytes / 1e9 AS volume_gb, -- Memory traffic in decimal GB.
  events -- Events covered.
FROM volumes
