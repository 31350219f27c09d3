/*---
status: stable
unit: us
polarity: lower_is_better
grain: [run_id, phase, kind, axis, size_class]
value: transfer_us
needs: [separate_collectives]
description: >
  Latency and bandwidth of collectives, which other tools call collective_latency and collective_bandwidth. The
  transfer time of an execution is the shortest time over its ranks. Bus bandwidth is message bytes times the factor
  of the kind over the transfer time, in decimal GB.
notes: >
  Mean and percentiles (by nearest rank) are over executions; a bandwidth divides the sum of the bytes by the sum of
  the time. The factor is 2 (n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, and 1 for
  collective-permute; the product is rounded down to whole bytes. Executions with ranks outside the capture count only
  in a row that has no others. The shortest time over the ranks at hand is then an upper bound of the transfer time,
  and bandwidths and waiting are lower bounds. The window of an asynchronous collective may outlast its transfer, so
  its time is an upper bound and its bandwidth a lower bound.
ccl_bench: bandwidth_utilization, comm_kernel_breakdown_tpu
---*/
WITH chosen AS (
  SELECT
    run_id, phase, kind, axis, size_class, size_from_bytes, is_partial, is_async, ranks, transfer_ps, wait_ps,
    bus_bytes, message_bytes
  FROM models.collective_instances
  WHERE transfer_ps IS NOT NULL
  QUALIFY is_partial = MIN(is_partial) OVER (PARTITION BY run_id, phase, kind, axis, size_class) -- whole executions, if there are any
),

ranked AS (
  SELECT
    *,
    CUME_DIST() OVER (PARTITION BY run_id, phase, kind, axis, size_class ORDER BY transfer_ps) AS quantile
  FROM chosen
)

SELECT
  run_id, phase, kind, axis,
  size_class, -- Range of the message size; NULL if unknown.
  MIN(size_from_bytes) AS size_from_bytes, -- Smallest message size of the class; NULL if unknown.
  SUM(transfer_ps) / (COUNT(*) * 1e6) AS transfer_us, -- Mean transfer time.
  CASE WHEN COUNT(*) FILTER (WHERE is_partial) > 0 THEN 'upper' END AS bound,
  MIN(transfer_ps) FILTER (WHERE quantile >= 0.5) / 1e6 AS p50_us,
  MIN(transfer_ps) FILTER (WHERE quantile >= 0.9) / 1e6 AS p90_us,
  MIN(transfer_ps) FILTER (WHERE quantile >= 0.99) / 1e6 AS p99_us,
  -- Mean time that a rank waits, as models.collective_ranks counts it.
  SUM(wait_ps) / (SUM(ranks) * 1e6) AS wait_us,
  -- Bus bandwidth; NULL if no bytes are known.
  SUM(bus_bytes) FILTER (WHERE bus_bytes > 0) * 1000
  / NULLIF(SUM(transfer_ps) FILTER (WHERE bus_bytes > 0), 0) AS bus_gbps,
  -- Message bytes over transfer time; NULL if no bytes are known.
  SUM(message_bytes) FILTER (WHERE bus_bytes > 0) * 1000
  / NULLIF(SUM(transfer_ps) FILTER (WHERE bus_bytes > 0), 0) AS algorithm_gbps,
  CAST(SUM(message_bytes) AS BIGINT) AS message_bytes, -- Message bytes of one rank, over all executions.
  SUM(transfer_ps) / 1e9 AS transfer_ms, -- Transfer time over all executions.
  COUNT(*) AS executions, -- Executions covered; all ranks of one count once.
  COUNT(*) FILTER (WHERE is_async) AS async_executions -- Asynchronous ones among them.
FROM ranked
GROUP BY run_id, phase, kind, axis, size_class
