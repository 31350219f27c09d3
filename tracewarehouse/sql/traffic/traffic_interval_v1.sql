/*---
status: stable
unit: us
polarity: none
grain: [run_id, phase, axis_from, axis_to, crosses_step]
value: interval_us
needs: [consecutive_collectives]
description: >
  Time on a device from the end of one collective to the start of the next, of the same axis or of another, as the
  mean over all devices. Gaps within a step and gaps from one step to the next have rows of their own.
notes: >
  Both collectives are in the same phase. Of the collectives that started earlier, the previous one is the last to end.
  If it still runs, the interval is 0. Percentiles are by nearest rank.
ccl_bench: traffic_window
---*/
WITH ranked AS (
  SELECT
    * EXCLUDE (device_id, event_id),
    CUME_DIST() OVER (PARTITION BY run_id, phase, axis_from, axis_to, crosses_step ORDER BY interval_ps) AS quantile
  FROM models.traffic_intervals
)

SELECT
  run_id, phase, axis_from, axis_to, crosses_step,
  SUM(interval_ps) / (COUNT(*) * 1e6) AS interval_us, -- Mean interval.
  MIN(interval_ps) FILTER (WHERE quantile >= 0.5) / 1e6 AS p50_us,
  MIN(interval_ps) FILTER (WHERE quantile >= 0.9) / 1e6 AS p90_us,
  MIN(interval_ps) FILTER (WHERE quantile >= 0.99) / 1e6 AS p99_us,
  COUNT(*) AS intervals, -- Number of intervals on all devices.
  -- Intervals of 0, in which the previous collective still ran.
  COUNT(*) FILTER (WHERE is_overlapping) AS overlapping
FROM ranked
GROUP BY run_id, phase, axis_from, axis_to, crosses_step
