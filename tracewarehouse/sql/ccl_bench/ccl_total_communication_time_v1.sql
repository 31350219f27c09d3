/*---
metric: ccl_total_communication_time
version: 1
status: compatibility
unit: s
polarity: lower_is_better
grain: [run_id]
value: communication_s
description: >
  Reproduces CCL-Bench's total_communication_time with its faults, to explain a published number; use
  communication_time instead.
notes: >
  It sums the duration on the device's clock of all events with a word of communication in their name, over all
  devices, so it grows with their number. If none states such a duration, it sums the plain durations, including those
  of host calls such as collective_rpc. The sum is divided by the card's iterations, and is 0 if no name has such a
  word.
changed: First version.
ccl_bench: total_communication_time
---*/
WITH worded AS (
  SELECT
    run_id, device_duration_ps, duration_ps,
    (
      LOWER(name) LIKE '%all-reduce%' OR LOWER(name) LIKE '%allreduce%' OR LOWER(name) LIKE '%all-gather%'
      OR LOWER(name) LIKE '%allgather%' OR LOWER(name) LIKE '%reduce-scatter%' OR LOWER(name) LIKE '%reducescatter%'
      OR LOWER(name) LIKE '%all-to-all%' OR LOWER(name) LIKE '%alltoall%' OR LOWER(name) LIKE '%collective%'
      OR LOWER(name) LIKE '%nccl%'
    ) AS is_communication
  FROM models.ccl_events
),

summed AS (
  SELECT
    run_id,
    COUNT(*) FILTER (WHERE is_communication) AS events,
    SUM(device_duration_ps) FILTER (WHERE is_communication) AS device_ps,
    SUM(duration_ps) FILTER (WHERE is_communication) AS event_ps
  FROM worded
  GROUP BY run_id
)

SELECT
  run_id,
  -- Duration over all devices per iteration.
  COALESCE(s.device_ps, s.event_ps, 0)
  / (CASE WHEN c.iterations > 0 THEN c.iterations ELSE 1 END * 1e12) AS communication_s,
  s.events -- Events whose name has such a word.
FROM summed AS s
INNER JOIN models.ccl_card AS c USING (run_id)
