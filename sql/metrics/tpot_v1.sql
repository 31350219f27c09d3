/*---
metric: tpot
version: 1
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, clock]
value: tpot_ms
requires: SELECT s.run_id FROM models.steps AS s WHERE s.phase = 'decode'
description: >
  Time per output token: mean over decode steps of the time from a step's start to the next one's, the last step by its
  own duration; each step as its slowest device or host saw it. There is no row below two decode steps. Percentiles are
  by nearest rank.
columns:
  run_id: The run.
  clock: host or device.
  tpot_ms: Mean time of a decode step.
  steps: Number of decode steps.
  p50_ms: Median.
  p90_ms: 90th percentile.
  p99_ms: 99th percentile.
  source: What the steps were read from.
changed: First version.
ccl_bench: tpot
---*/
WITH ranked AS (
  SELECT
    d.run_id AS run_id,
    d.clock AS clock,
    d.token_ps AS token_ps,
    d.source AS source,
    ROW_NUMBER() OVER (PARTITION BY d.run_id, d.clock ORDER BY d.token_ps, d.step) AS place,
    COUNT(*) OVER (PARTITION BY d.run_id, d.clock) AS places
  FROM models.decode_steps AS d
)

SELECT
  r.run_id AS run_id,
  r.clock AS clock,
  CAST(SUM(r.token_ps) AS DOUBLE) / CAST(COUNT(*) * 1000000000 AS DOUBLE) AS tpot_ms,
  COUNT(*) AS steps,
  CAST(MIN(CASE WHEN r.place * 100 >= r.places * 50 THEN r.token_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000000 AS DOUBLE) AS p50_ms,
  CAST(MIN(CASE WHEN r.place * 100 >= r.places * 90 THEN r.token_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000000 AS DOUBLE) AS p90_ms,
  CAST(MIN(CASE WHEN r.place * 100 >= r.places * 99 THEN r.token_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000000 AS DOUBLE) AS p99_ms,
  MIN(r.source) AS source
FROM ranked AS r
GROUP BY r.run_id, r.clock
HAVING COUNT(*) >= 2
