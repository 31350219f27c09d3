/*---
description: >
  One row per execution of a collective, over all its ranks, in runs that have times. models.collective_ranks says what
  transfer and waiting are.
---*/
WITH joined AS (
  SELECT
    run_id, instance,
    MIN(kind) AS kind,
    MIN(axis) AS axis,
    COALESCE(MIN(phase) FILTER (WHERE phase <> 'outside'), MIN(phase)) AS phase,
    MIN(step) AS step,
    CAST(MAX(group_size) AS BIGINT) AS group_size,
    COUNT(*) AS ranks,
    MAX(CASE WHEN is_partial THEN 1 ELSE 0 END) = 1 AS is_partial,
    MAX(CASE WHEN is_async THEN 1 ELSE 0 END) = 1 AS is_async,
    MAX(message_bytes) AS message_bytes,
    MIN(start_ps) AS first_start_ps,
    MAX(start_ps) AS last_start_ps,
    MAX(end_ps) AS end_ps,
    MIN(transfer_ps) AS transfer_ps,
    SUM(wait_ps) AS wait_ps
  FROM models.collective_ranks
  GROUP BY run_id, instance
)

SELECT
  run_id, instance, kind, axis, phase, step, group_size,
  ranks, -- Ranks that are in the capture.
  is_partial, -- Ranks are missing from the capture, so transfer and skew cover only the ranks at hand.
  is_async, -- Split into a start and a done.
  message_bytes, -- Message of one rank; the largest if ranks differ.
  CASE
    WHEN message_bytes IS NULL THEN NULL
    WHEN message_bytes < 4096 THEN 'below 4 KiB'
    WHEN message_bytes < 65536 THEN '4 KiB to 64 KiB'
    WHEN message_bytes < 1048576 THEN '64 KiB to 1 MiB'
    WHEN message_bytes < 16777216 THEN '1 MiB to 16 MiB'
    WHEN message_bytes < 268435456 THEN '16 MiB to 256 MiB'
    ELSE '256 MiB and more'
  END AS size_class, -- Range of message_bytes, in factors of 16.
  CAST(
    CASE
      WHEN message_bytes IS NULL THEN NULL
      WHEN message_bytes < 4096 THEN 0
      WHEN message_bytes < 65536 THEN 4096
      WHEN message_bytes < 1048576 THEN 65536
      WHEN message_bytes < 16777216 THEN 1048576
      WHEN message_bytes < 268435456 THEN 16777216
      ELSE 268435456
    END AS BIGINT
  ) AS size_from_bytes, -- Smallest size of that range.
  -- Message times the factor of the kind for n devices, rounded down: 2 (n-1)/n for all-reduce, (n-1)/n for all-gather,
  -- reduce-scatter and all-to-all, 1 for collective-permute; NULL for other kinds.
  CASE
    WHEN kind = 'all-reduce' THEN (2 * (group_size - 1) * message_bytes) // NULLIF(group_size, 0)
    WHEN kind IN ('all-gather', 'reduce-scatter', 'all-to-all')
      THEN ((group_size - 1) * message_bytes) // NULLIF(group_size, 0)
    WHEN kind = 'collective-permute' THEN message_bytes
  END AS bus_bytes,
  first_start_ps, -- Start of the first rank.
  last_start_ps, -- Start of the last rank.
  end_ps, -- Latest end over the ranks.
  transfer_ps, -- Shortest time over the ranks; NULL for a collective that is part of an op that computes.
  CAST(wait_ps AS BIGINT) AS wait_ps, -- Time that the ranks wait, all together.
  last_start_ps - first_start_ps AS skew_ps -- Time between the first and the last start.
FROM joined
