/*---
model: collective_instances
description: >
  One row per execution of a collective over all its ranks. The rank that arrives last waits for nobody, so the shortest
  time over the ranks is the time of the transfer itself; what others take beyond it is waiting.
columns:
  run_id: The run.
  instance: The execution that the ranks share.
  kind: Kind of collective.
  axis: Mesh axes of its groups.
  phase: Phase; NULL outside of phases.
  step: Step; NULL outside of steps.
  group_size: Devices in a group; 2 for a collective-permute pair.
  ranks: Ranks of it that are in the capture.
  is_partial: Ranks are missing from the capture, so neither transfer nor skew is that of the whole.
  is_async: Split into a start and a done.
  message_bytes: Message of one rank; the largest where ranks differ.
  size_class: Range that message_bytes is in, in steps of 16.
  size_from_bytes: Smallest size of that range.
  bus_bytes: >
    Message times the factor of the kind for n devices, rounded down: 2 (n-1)/n for all-reduce, (n-1)/n for all-gather,
    reduce-scatter and all-to-all, 1 for collective-permute; NULL for other kinds.
  first_start_ps: Start of the first rank.
  last_start_ps: Start of the last rank.
  end_ps: Latest end over the ranks.
  transfer_ps: Shortest time over the ranks.
  wait_ps: Time of all ranks together beyond transfer_ps.
  skew_ps: last_start_ps - first_start_ps.
---*/
WITH joined AS (
  SELECT
    c.run_id AS run_id,
    c.instance AS instance,
    MIN(c.kind) AS kind,
    MIN(c.axis) AS axis,
    MIN(c.phase) AS phase,
    MIN(c.step) AS step,
    CAST(MAX(c.group_size) AS BIGINT) AS group_size,
    COUNT(*) AS ranks,
    MAX(CASE WHEN c.is_partial THEN 1 ELSE 0 END) = 1 AS is_partial,
    MAX(CASE WHEN c.is_async THEN 1 ELSE 0 END) = 1 AS is_async,
    MAX(c.message_bytes) AS message_bytes,
    MIN(c.start_ps) AS first_start_ps,
    MAX(c.start_ps) AS last_start_ps,
    MAX(c.end_ps) AS end_ps,
    MIN(c.end_ps - c.start_ps) AS transfer_ps,
    CAST(SUM(c.end_ps - c.start_ps) AS BIGINT) AS window_ps
  FROM main.collectives AS c
  WHERE c.instance IS NOT NULL
  GROUP BY c.run_id, c.instance
)

SELECT
  j.run_id AS run_id,
  j.instance AS instance,
  j.kind AS kind,
  j.axis AS axis,
  j.phase AS phase,
  j.step AS step,
  j.group_size AS group_size,
  j.ranks AS ranks,
  j.is_partial AS is_partial,
  j.is_async AS is_async,
  j.message_bytes AS message_bytes,
  CASE
    WHEN j.message_bytes IS NULL THEN NULL
    WHEN j.message_bytes < 4096 THEN 'below 4 KiB'
    WHEN j.message_bytes < 65536 THEN '4 KiB to 64 KiB'
    WHEN j.message_bytes < 1048576 THEN '64 KiB to 1 MiB'
    WHEN j.message_bytes < 16777216 THEN '1 MiB to 16 MiB'
    WHEN j.message_bytes < 268435456 THEN '16 MiB to 256 MiB'
    ELSE '256 MiB and more'
  END AS size_class,
  CAST(
    CASE
      WHEN j.message_bytes IS NULL THEN NULL
      WHEN j.message_bytes < 4096 THEN 0
      WHEN j.message_bytes < 65536 THEN 4096
      WHEN j.message_bytes < 1048576 THEN 65536
      WHEN j.message_bytes < 16777216 THEN 1048576
      WHEN j.message_bytes < 268435456 THEN 16777216
      ELSE 268435456
    END AS BIGINT
  ) AS size_from_bytes,
  CASE
    WHEN j.kind = 'all-reduce' THEN (2 * (j.group_size - 1) * j.message_bytes) // NULLIF(j.group_size, 0)
    WHEN j.kind IN ('all-gather', 'reduce-scatter', 'all-to-all')
      THEN ((j.group_size - 1) * j.message_bytes) // NULLIF(j.group_size, 0)
    WHEN j.kind = 'collective-permute' THEN j.message_bytes
    ELSE NULL
  END AS bus_bytes,
  j.first_start_ps AS first_start_ps,
  j.last_start_ps AS last_start_ps,
  j.end_ps AS end_ps,
  j.transfer_ps AS transfer_ps,
  j.window_ps - j.ranks * j.transfer_ps AS wait_ps,
  j.last_start_ps - j.first_start_ps AS skew_ps
FROM joined AS j
