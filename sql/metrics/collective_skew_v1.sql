/*---
metric: collective_skew
version: 1
status: stable
unit: us
polarity: lower_is_better
grain: [run_id, phase, axis]
value: skew_us
requires: SELECT i.run_id FROM models.collective_instances AS i WHERE NOT i.is_partial AND i.ranks > 1
description: >
  Start of the last rank of a collective minus the start of the first, mean over executions, percentiles by nearest rank;
  and the device that was last most often. Executions with ranks outside the capture, or with one rank, are left out.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  axis: Mesh axes of the groups.
  skew_us: Mean skew.
  p50_us: Median.
  p90_us: 90th percentile.
  p99_us: 99th percentile.
  executions: Executions that it covers.
  last_device_id: Device that was last most often; of several the lowest.
  last_share: Share of the executions in which it was.
changed: First version.
ccl_bench: straggler
---*/
WITH ranked AS (
  SELECT
    i.run_id AS run_id,
    i.phase AS phase,
    i.axis AS axis,
    i.skew_ps AS skew_ps,
    ROW_NUMBER() OVER (PARTITION BY i.run_id, i.phase, i.axis ORDER BY i.skew_ps, i.instance) AS place,
    COUNT(*) OVER (PARTITION BY i.run_id, i.phase, i.axis) AS places
  FROM models.collective_instances AS i
  WHERE NOT i.is_partial AND i.ranks > 1
),

summed AS (
  SELECT
    r.run_id AS run_id,
    r.phase AS phase,
    r.axis AS axis,
    CAST(SUM(r.skew_ps) AS BIGINT) AS skew_ps,
    MIN(CASE WHEN r.place * 100 >= r.places * 50 THEN r.skew_ps ELSE NULL END) AS p50_ps,
    MIN(CASE WHEN r.place * 100 >= r.places * 90 THEN r.skew_ps ELSE NULL END) AS p90_ps,
    MIN(CASE WHEN r.place * 100 >= r.places * 99 THEN r.skew_ps ELSE NULL END) AS p99_ps,
    COUNT(*) AS executions
  FROM ranked AS r
  GROUP BY r.run_id, r.phase, r.axis
),

-- the rank that starts last; of several the lowest
latest AS (
  SELECT
    j.run_id AS run_id,
    j.phase AS phase,
    j.axis AS axis,
    j.instance AS instance,
    MIN(c.device_id) AS device_id
  FROM models.collective_instances AS j
  INNER JOIN main.collectives AS c
    ON j.run_id = c.run_id AND j.instance = c.instance AND j.last_start_ps = c.start_ps
  WHERE NOT j.is_partial AND j.ranks > 1
  GROUP BY j.run_id, j.phase, j.axis, j.instance
),

lasts AS (
  SELECT
    t.run_id AS run_id,
    t.phase AS phase,
    t.axis AS axis,
    t.device_id AS device_id,
    COUNT(*) AS times
  FROM latest AS t
  GROUP BY t.run_id, t.phase, t.axis, t.device_id
),

slowest AS (
  SELECT
    l.run_id AS run_id,
    l.phase AS phase,
    l.axis AS axis,
    l.device_id AS device_id,
    l.times AS times,
    ROW_NUMBER() OVER (PARTITION BY l.run_id, l.phase, l.axis ORDER BY l.times DESC, l.device_id) AS place
  FROM lasts AS l
)

SELECT
  s.run_id AS run_id,
  s.phase AS phase,
  s.axis AS axis,
  CAST(s.skew_ps AS DOUBLE) / CAST(s.executions * 1000000 AS DOUBLE) AS skew_us,
  CAST(s.p50_ps AS DOUBLE) / CAST(1000000 AS DOUBLE) AS p50_us,
  CAST(s.p90_ps AS DOUBLE) / CAST(1000000 AS DOUBLE) AS p90_us,
  CAST(s.p99_ps AS DOUBLE) / CAST(1000000 AS DOUBLE) AS p99_us,
  s.executions AS executions,
  o.device_id AS last_device_id,
  CAST(o.times AS DOUBLE) / CAST(s.executions AS DOUBLE) AS last_share
FROM summed AS s
INNER JOIN slowest AS o
  ON
    s.run_id = o.run_id AND COALESCE(s.phase, '') = COALESCE(o.phase, '') AND s.axis = o.axis
    AND o.place = 1
