/*---
metric: ccl_communication_fraction
version: 1
status: compatibility
unit: "%"
polarity: lower_is_better
grain: [run_id]
value: fraction_percent
requires: SELECT run_id FROM models.ccl_events
description: >
  Reproduces CCL-Bench's communication_fraction with its faults, to explain a published number; use
  communication_fraction instead. Per device the duration of events whose name or category is exactly a collective's,
  over the duration of all events, mean over devices. Programs, steps and loops are in the denominator beside their ops;
  most asynchronous and all fused collectives are missed; a local broadcast counts.
changed: First version.
ccl_bench: communication_fraction
---*/
WITH devices AS (
  SELECT
    run_id,
    device_id,
    SUM(duration_ps) AS all_ps,
    SUM(
      CASE
        WHEN category IN (
          'all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter', 'collective-permute',
          'collective-permute-start', 'collective-permute-done', 'send', 'recv', 'broadcast'
        ) OR name IN (
          'all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter', 'collective-permute',
          'collective-permute-start', 'collective-permute-done', 'send', 'recv', 'broadcast'
        ) THEN duration_ps
        ELSE 0
      END
    ) AS communication_ps
  FROM models.ccl_events
  GROUP BY run_id, device_id
),

shares AS (
  SELECT run_id, device_id, communication_ps / all_ps AS fraction
  FROM devices
  WHERE all_ps > 0
),

added AS (
  SELECT
    run_id,
    SUM(fraction) OVER (
      PARTITION BY run_id ORDER BY device_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS fraction
  FROM shares
)

SELECT
  run_id, -- The run.
  1e2 * MAX(fraction) / COUNT(*) AS fraction_percent, -- Mean share in percent.
  COUNT(*) AS devices -- Devices that it covers.
FROM added
GROUP BY run_id
