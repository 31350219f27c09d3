/*---
status: experimental
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: spread
needs: [predicted, timed_ops]
description: >
  Range of the predicted device time of a step over that time. Ops with the same basis are taken to err together, and
  different bases independently.
notes: >
  So the ranges of a basis's ops add up, and the ranges of different bases add as the root of the sum of their squares.
  The range leaves out another compiler, other ops of a server, and its host. host_ms is the time of the host that the
  user gave.
---*/
-- distances in units of 10 ns, or of a billionth of the high end beyond 10 s: the sum of their squares is below 2^63
WITH units AS (
  SELECT run_id, phase, GREATEST(10000, CAST(SUM(high_ps) AS BIGINT) // 1000000000) AS unit_ps
  FROM models.prediction_times
  GROUP BY run_id, phase
),

bases AS (
  SELECT
    t.run_id, t.phase, t.time_ps, t.low_ps, t.high_ps, t.extrapolated_ps, u.unit_ps,
    (t.time_ps - t.low_ps) // u.unit_ps AS below,
    (t.high_ps - t.time_ps) // u.unit_ps AS above
  FROM models.prediction_times AS t
  INNER JOIN units AS u ON t.run_id = u.run_id AND t.phase IS NOT DISTINCT FROM u.phase
),

summed AS (
  SELECT
    run_id, phase,
    SUM(time_ps) AS time_ps,
    SUM(low_ps) AS least_ps,
    SUM(high_ps) AS most_ps,
    SUM(extrapolated_ps) AS extrapolated_ps,
    MIN(unit_ps) * SQRT(CAST(SUM(below * below) AS DOUBLE)) AS below_ps,
    MIN(unit_ps) * SQRT(CAST(SUM(above * above) AS DOUBLE)) AS above_ps
  FROM bases
  GROUP BY run_id, phase
)

SELECT
  s.run_id,
  s.phase, -- prefill or decode.
  (s.below_ps + s.above_ps) / s.time_ps AS spread, -- Range over time.
  s.time_ps / 1e9 AS time_ms, -- Predicted device time of the step.
  (s.time_ps - s.below_ps) / 1e9 AS low_ms, -- Low end of its range.
  (s.time_ps + s.above_ps) / 1e9 AS high_ms, -- High end.
  s.least_ps / 1e9 AS least_ms, -- The time with all ops at the low ends of their ranges.
  s.most_ps / 1e9 AS most_ms, -- The time with all ops at the high ends.
  s.extrapolated_ps / CAST(s.time_ps AS DOUBLE) AS extrapolated_share, -- Part of the time for layers that were not compiled.
  p.host_ps / 1e9 AS host_ms -- Time of the host for a step that the user gave; it is not in the range.
FROM summed AS s
LEFT JOIN main.predictions AS p ON s.run_id = p.run_id AND s.phase = p.phase
WHERE s.time_ps > 0
