/*---
status: compatibility
unit: GB/s
polarity: higher_is_better
grain: [run_id, kind]
value: bandwidth
description: >
  Reproduces CCL-Bench's bandwidth_utilization_* with its faults, to explain a published number; use
  collective_transfer instead.
notes: >
  It takes the median over events of bytes_accessed / 2^30 x f / duration, where f is 2 (n-1)/n for all-reduce and
  (n-1)/n otherwise. bytes_accessed is memory traffic, about twice the message. n is not the size of a group but the
  number of devices with events of the same all_reduce_unique_id, or for other kinds of the same name. The unit is
  GiB/s though it is called GB/s. Waiting for late ranks counts as transfer. In Kineto traces it reads the first rank
  alone; there the bytes are the elements that go in, so that an all-gather of n ranks is n times too slow.
ccl_bench: bandwidth_utilization
---*/
WITH numbered AS (
  SELECT run_id, event_id, MAX(COALESCE(string_value, CAST(int_value AS VARCHAR))) AS unique_id
  FROM main.event_stats
  WHERE name = 'all_reduce_unique_id'
  GROUP BY run_id, event_id
),

collectives AS (
  SELECT
    run_id, e.event_id, e.category AS kind,
    CASE WHEN e.category = 'all-reduce' THEN COALESCE(n.unique_id, '') ELSE e.name END AS group_key,
    e.host, e.plane, e.device_id, e.bytes_accessed AS bytes, e.device_duration_ps AS duration_ps
  FROM models.ccl_events AS e
  LEFT JOIN numbered AS n USING (run_id, event_id)
  WHERE e.category IN ('all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter')
),

members AS (
  SELECT run_id, kind, group_key, host, plane, device_id
  FROM collectives
  GROUP BY run_id, kind, group_key, host, plane, device_id
),

sizes AS (
  SELECT run_id, kind, group_key, COUNT(*) AS devices
  FROM members
  GROUP BY run_id, kind, group_key
),

rated AS (
  SELECT
    run_id, c.event_id, c.kind, z.devices,
    CASE WHEN c.kind = 'all-reduce' THEN 2 ELSE 1 END * (z.devices - 1) * c.bytes
    / (z.devices * c.duration_ps) AS bytes_per_ps
  FROM collectives AS c
  INNER JOIN sizes AS z USING (run_id, kind, group_key)
  WHERE c.bytes > 0 AND c.duration_ps > 0
),

sized AS (
  SELECT
    run_id, kind, event_id, host_index, group_size, bytes, duration_ps,
    MIN(host_index) OVER (PARTITION BY run_id, kind) AS first_index
  FROM models.ccl_messages
  WHERE kind IS NOT NULL AND bytes > 0 AND has_known_type AND group_size IS NOT NULL AND duration_ps > 0
),

all_rated AS (
  SELECT run_id, event_id, kind, devices, bytes_per_ps
  FROM rated
  UNION ALL
  SELECT
    run_id, event_id, kind, group_size AS devices,
    CASE WHEN kind = 'all-reduce' THEN 2 ELSE 1 END * (group_size - 1) * bytes
    / (group_size * duration_ps) AS bytes_per_ps
  FROM sized
  WHERE host_index = first_index
),

ranked AS (
  SELECT
    * EXCLUDE (event_id),
    ROW_NUMBER() OVER (PARTITION BY run_id, kind ORDER BY bytes_per_ps, event_id) AS place,
    COUNT(*) OVER (PARTITION BY run_id, kind) AS places
  FROM all_rated
)

SELECT
  run_id,
  kind, -- The category.
  (
    MAX(bytes_per_ps) FILTER (WHERE place = (places + 1) // 2)
    + MAX(bytes_per_ps) FILTER (WHERE place = places // 2 + 1)
  )
  * (5e11 / 1073741824) AS bandwidth, -- Median, in GiB/s.
  COUNT(*) AS events, -- Events covered.
  MAX(devices) AS devices -- Most devices taken for a group.
FROM ranked
GROUP BY run_id, kind
