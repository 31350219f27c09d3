/*---
metric: ccl_communication_fraction
version: 1
status: deprecated
unit: "%"
polarity: lower_is_better
grain: [run_id]
value: fraction_percent
requires: SELECT e.run_id FROM models.ccl_events AS e
description: >
  Reproduces CCL-Bench's communication_fraction with its faults, to explain a published number; use
  communication_fraction instead. Per device the duration of events whose name or category is exactly a collective's,
  over the duration of all events, mean over devices. Programs, steps and loops are in the denominator beside their ops;
  most asynchronous and all fused collectives are missed; a local broadcast counts.
columns:
  run_id: The run.
  fraction_percent: Mean share in percent.
  devices: Devices that it covers.
changed: First version.
deprecated: Only explains numbers that CCL-Bench published; use communication_fraction instead.
ccl_bench: communication_fraction
---*/
WITH devices AS (
  SELECT
    e.run_id AS run_id,
    e.device_id AS device_id,
    CAST(SUM(e.duration_ps) AS BIGINT) AS all_ps,
    CAST(SUM(CASE WHEN e.name IN (
      'all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter', 'collective-permute', 'collective-permute-start',
      'collective-permute-done', 'send', 'recv', 'broadcast'
    ) OR e.category IN (
      'all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter', 'collective-permute', 'collective-permute-start',
      'collective-permute-done', 'send', 'recv', 'broadcast'
    ) THEN e.duration_ps ELSE 0 END) AS BIGINT)
      AS communication_ps
  FROM models.ccl_events AS e
  GROUP BY e.run_id, e.device_id
),

shares AS (
  SELECT
    d.run_id AS run_id,
    d.device_id AS device_id,
    CAST(d.communication_ps AS DOUBLE) / CAST(d.all_ps AS DOUBLE) AS fraction
  FROM devices AS d
  WHERE d.all_ps > 0
),

added AS (
  SELECT
    a.run_id AS run_id,
    SUM(a.fraction) OVER (
      PARTITION BY a.run_id ORDER BY a.device_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS fraction
  FROM shares AS a
)

SELECT
  r.run_id AS run_id,
  CAST(CAST(100 AS DOUBLE) * MAX(r.fraction) AS DOUBLE) / CAST(COUNT(*) AS DOUBLE) AS fraction_percent,
  COUNT(*) AS devices
FROM added AS r
GROUP BY r.run_id
