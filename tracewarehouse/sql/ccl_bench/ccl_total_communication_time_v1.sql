/*---
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
  word. In Kineto traces it takes the union of such kernels from the first to the last of PyTorch's marks on the host,
  without the first and the last step, divides it by these steps, and takes the mean of the ranks. In exports of Nsight
  Systems it sums the whole trace over all devices.
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

kernels AS (
  SELECT
    run_id, is_nsys, host, event_id, start_ps, end_ps, duration_ps,
    REGEXP_MATCHES(
      lower_name,
      '^nccl|nccldevkernel|ncclkernel|allreduce|allgather|reducescatter|broadcast|cross[-_]?device|all_reduce'
    ) OR REGEXP_MATCHES(lower_name, 'all_gather|reduce_scatter|sendrecv') AS is_communication
  FROM models.ccl_kernels
),

steps AS (
  SELECT
    run_id, host,
    MIN(start_ps) FILTER (WHERE place = 2 AND places > 2) AS first_ps,
    MAX(start_ps + duration_ps) FILTER (WHERE place = places - 1 AND places > 2) AS last_ps,
    CASE WHEN MAX(places) > 2 THEN MAX(places) - 2 ELSE MAX(places) END AS steps
  FROM models.ccl_marks
  WHERE kind = 'profiler step'
  GROUP BY run_id, host
),

clipped AS (
  SELECT
    run_id, host, k.is_communication, k.event_id,
    CASE WHEN k.is_communication THEN GREATEST(k.start_ps, COALESCE(s.first_ps, k.start_ps)) END AS start_ps,
    CASE WHEN k.is_communication THEN LEAST(k.end_ps, COALESCE(s.last_ps, k.end_ps)) END AS end_ps,
    COALESCE(s.steps, 1) AS steps
  FROM kernels AS k
  LEFT JOIN steps AS s USING (run_id, host)
  WHERE NOT k.is_nsys
),

covered AS (
  SELECT
    run_id, host, is_communication, steps, start_ps, end_ps,
    MAX(CASE WHEN start_ps < end_ps THEN end_ps END) OVER (
      PARTITION BY run_id, host ORDER BY start_ps, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS covered_until_ps
  FROM clipped
),

of_ranks AS (
  SELECT
    run_id, host,
    CAST(
      FLOOR(
        COALESCE(SUM(GREATEST(end_ps - GREATEST(start_ps, COALESCE(covered_until_ps, start_ps)), 0)), 0) / MAX(steps)
        + 5e-1
      ) AS BIGINT
    ) AS step_ps,
    COUNT(*) FILTER (WHERE is_communication) AS events
  FROM covered
  GROUP BY run_id, host
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
UNION ALL
SELECT
  run_id,
  SUM(step_ps) / (COUNT(*) * 1e12) AS communication_s,
  CAST(SUM(events) AS BIGINT) AS events
FROM of_ranks
GROUP BY run_id
UNION ALL
SELECT
  run_id,
  COALESCE(SUM(duration_ps) FILTER (WHERE is_communication), 0) / 1e12 AS communication_s,
  COUNT(*) FILTER (WHERE is_communication) AS events
FROM kernels
WHERE is_nsys
GROUP BY run_id
