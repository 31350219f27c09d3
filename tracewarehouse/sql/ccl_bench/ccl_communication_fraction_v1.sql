/*---
metric: ccl_communication_fraction
version: 1
status: compatibility
unit: "%"
polarity: lower_is_better
grain: [run_id]
value: fraction_percent
description: >
  Reproduces CCL-Bench's communication_fraction with its faults, to explain a published number; use
  communication_fraction instead.
notes: >
  Per TPU, it divides the duration of events whose name or category is exactly a collective's by the duration of all
  events, and takes the mean over TPUs. A run without TPUs is divided by process. Shares are whole units of 1e-15, so
  that their sum is exact in any order. The denominator includes programs, steps and loops beside their ops. Most
  asynchronous and all fused collectives are missed, and a local broadcast counts. Microseconds of events that state
  no duration on the device's clock are added to nanoseconds of the others.
changed: First version.
ccl_bench: communication_fraction
---*/
WITH processes AS (
  SELECT
    run_id, host, plane, device_id,
    SUM(mixed_duration) AS total,
    SUM(
      CASE
        WHEN LOWER(category) IN (
          'all-reduce', 'allreduce', 'all_reduce', 'all-gather', 'allgather', 'all_gather', 'all-to-all', 'alltoall',
          'reduce-scatter', 'reducescatter', 'reduce_scatter', 'collective-permute', 'collective-permute-start',
          'collective-permute-done', 'send', 'recv', 'broadcast'
        ) OR LOWER(name) IN (
          'all-reduce', 'allreduce', 'all_reduce', 'all-gather', 'allgather', 'all_gather', 'all-to-all', 'alltoall',
          'reduce-scatter', 'reducescatter', 'reduce_scatter', 'collective-permute', 'collective-permute-start',
          'collective-permute-done', 'send', 'recv', 'broadcast'
        ) THEN mixed_duration
        ELSE 0
      END
    ) AS communication
  FROM models.ccl_events
  WHERE counts AND mixed_duration > 0
  GROUP BY run_id, host, plane, device_id
),

shares AS (
  SELECT run_id, CAST(FLOOR(communication / total * 1e15 + 5e-1) AS BIGINT) AS units
  FROM processes
)

SELECT
  run_id,
  SUM(units) / (1e13 * COUNT(*)) AS fraction_percent, -- Mean share in percent.
  COUNT(*) AS devices -- Processes covered.
FROM shares
GROUP BY run_id
