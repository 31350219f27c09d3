/*---
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
  asynchronous and all fused collectives are missed, and a local broadcast counts. Events that state no duration on the
  device's clock count in microseconds, and the others in nanoseconds. In Kineto traces it divides the time of kernels
  with a word of communication by that of all kernels, during each of PyTorch's marks on the host but the first and the
  last. If the GPU is behind the host, these kernels belong to other steps. The value is the mean over steps and ranks.
  Traces without such marks, and exports of Nsight Systems, are divided as a whole.
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

kernels AS (
  SELECT
    run_id, is_nsys, host, start_ps, end_ps, duration_ps, CASE
      WHEN REGEXP_MATCHES(
        lower_name,
        'nccl|allreduce|allgather|broadcast|send|recv|p2p|cross_device|communicate|all_reduce|all_gather|reducescatter'
      ) OR (NOT is_nsys AND REGEXP_MATCHES(lower_name, 'cross-?device|reduce_scatter')) THEN duration_ps
      ELSE 0
    END AS communication_ps
  FROM models.ccl_kernels
),

steps AS (
  SELECT run_id, host, event_id, start_ps, start_ps + duration_ps AS end_ps
  FROM models.ccl_marks
  WHERE kind = 'profiler step' AND (places <= 2 OR (place > 1 AND place < places))
),

-- kernels that overlap a step are those that start before its end, without those that have ended at its start
moments AS (
  SELECT
    run_id, host, NULL AS event_id, start_ps AS at_ps, 'start' AS what, duration_ps, communication_ps
  FROM kernels
  UNION ALL
  SELECT
    run_id, host, NULL AS event_id, end_ps AS at_ps, 'end' AS what, duration_ps, communication_ps
  FROM kernels
  UNION ALL
  SELECT
    run_id, host, event_id, start_ps AS at_ps, 'mark' AS what, 0 AS duration_ps, 0 AS communication_ps
  FROM steps
  UNION ALL
  SELECT
    run_id, host, event_id, end_ps AS at_ps, 'mark' AS what, 0 AS duration_ps, 0 AS communication_ps
  FROM steps
),

so_far AS (
  SELECT
    run_id, host, event_id,
    SUM(CASE WHEN what = 'start' THEN duration_ps ELSE 0 END) OVER earlier AS started_ps,
    SUM(CASE WHEN what = 'start' THEN communication_ps ELSE 0 END) OVER earlier AS started_communication_ps,
    SUM(CASE WHEN what = 'end' THEN duration_ps ELSE 0 END) OVER earlier AS ended_ps,
    SUM(CASE WHEN what = 'end' THEN communication_ps ELSE 0 END) OVER earlier AS ended_communication_ps
  FROM moments
  -- at one time an end comes before a mark and a mark before a start, as their names do
  WINDOW earlier AS (
    PARTITION BY run_id, host ORDER BY at_ps, what, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  )
),

of_steps AS (
  SELECT
    run_id, host, event_id,
    MAX(started_ps) - MIN(ended_ps) AS total_ps,
    MAX(started_communication_ps) - MIN(ended_communication_ps) AS communication_ps
  FROM so_far
  WHERE event_id IS NOT NULL
  GROUP BY run_id, host, event_id
  HAVING MAX(started_ps) > MIN(ended_ps)
),

step_shares AS (
  SELECT run_id, host, CAST(FLOOR(communication_ps / total_ps * 1e15 + 5e-1) AS BIGINT) AS units
  FROM of_steps
),

whole AS (
  SELECT
    run_id,
    CASE WHEN is_nsys THEN '' ELSE host END AS host,
    SUM(duration_ps) AS total_ps,
    SUM(communication_ps) AS communication_ps
  FROM kernels
  GROUP BY run_id, CASE WHEN is_nsys THEN '' ELSE host END
),

marked AS (
  SELECT run_id, host, COUNT(*) AS steps
  FROM steps
  GROUP BY run_id, host
),

of_ranks AS (
  SELECT run_id, host, CAST(FLOOR(SUM(units) / COUNT(*) + 5e-1) AS BIGINT) AS units
  FROM step_shares
  GROUP BY run_id, host
  UNION ALL
  SELECT run_id, host, CAST(FLOOR(w.communication_ps / w.total_ps * 1e15 + 5e-1) AS BIGINT) AS units
  FROM whole AS w
  LEFT JOIN marked AS k USING (run_id, host)
  WHERE k.steps IS NULL AND w.total_ps > 0
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
UNION ALL
SELECT run_id, SUM(units) / (1e13 * COUNT(*)) AS fraction_percent, COUNT(*) AS devices
FROM of_ranks
GROUP BY run_id
