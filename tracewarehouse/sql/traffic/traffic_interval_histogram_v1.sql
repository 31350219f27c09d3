/*---
status: stable
unit: count
polarity: none
grain: [run_id, phase, axis_from, axis_to, crosses_step, from_us]
value: intervals
needs: [consecutive_collectives]
description: >
  Number of intervals of traffic_interval in each decade from 1 us to 10 ms, and below and above, over all devices. A
  bin without intervals has no row.
---*/
WITH placed AS (
  SELECT
    run_id, phase, axis_from, axis_to, crosses_step,
    CAST(
      CASE
        WHEN interval_ps < 1000000 THEN 0
        WHEN interval_ps < 10000000 THEN 1
        WHEN interval_ps < 100000000 THEN 10
        WHEN interval_ps < 1000000000 THEN 100
        WHEN interval_ps < 10000000000 THEN 1000
        ELSE 10000
      END AS BIGINT
    ) AS from_us
  FROM models.traffic_intervals
)

SELECT
  run_id, phase, axis_from, axis_to, crosses_step,
  from_us, -- Lower end of the bin, inclusive.
  -- Upper end of the bin, exclusive; NULL for the last.
  CASE WHEN from_us = 0 THEN 1 WHEN from_us < 10000 THEN from_us * 10 END AS until_us,
  COUNT(*) AS intervals -- Number of intervals.
FROM placed
GROUP BY run_id, phase, axis_from, axis_to, crosses_step, from_us
