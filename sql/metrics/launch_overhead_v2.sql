/*---
metric: launch_overhead
version: 2
status: stable
unit: us
polarity: lower_is_better
grain: [run_id, phase, device_id]
value: gap_us
requires: SELECT p.run_id FROM main.phases AS p WHERE p.kind = 'module' AND p.device_id IS NOT NULL
description: >
  Time on a device from the end of one execution of a program to the start of the next, mean over the executions of a
  phase, percentiles by nearest rank. The phase is that of the next one. An execution that starts before the end
  of those before it follows at 0. Beside it the time from the start of the host's dispatch of an execution to its start
  on the device, queueing behind earlier executions included, and the part of the gap in which the host had not begun to
  dispatch: what is left of the gap is the device's own. A phase of executions that follow none and whose dispatch is not
  known has no row.
columns:
  run_id: The run.
  phase: Phase of the execution that starts; NULL outside of phases.
  device_id: The device.
  gap_us: Mean time between executions; NULL where none follows another.
  p50_us: Median.
  p90_us: 90th percentile.
  p99_us: 99th percentile.
  launches: Executions that follow another.
  dispatch_us: Mean time from the start of dispatch on the host to the start on the device; NULL where not known.
  dispatch_p50_us: Median.
  dispatch_p90_us: 90th percentile.
  dispatch_p99_us: 99th percentile.
  dispatches: Executions whose dispatch is known.
  late_us: >
    Mean part of the gap before the dispatch began, over the launches whose dispatch is known; NULL where there are none.
changed: >
  The time from dispatch on the host to the start on the device, and what part of the gaps is the host's; and an execution
  that follows none counts with its dispatch.
---*/
WITH executions AS (
  SELECT
    p.run_id AS run_id,
    p.device_id AS device_id,
    p."index" AS execution,
    p.start_ps AS start_ps,
    MAX(p.end_ps) OVER (
      PARTITION BY p.run_id, p.device_id ORDER BY p.start_ps, p."index"
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS last_end_ps
  FROM main.phases AS p
  WHERE p.kind = 'module' AND p.device_id IS NOT NULL
),

phase_of_execution AS (
  SELECT
    o.run_id AS run_id,
    o.device_id AS device_id,
    o.execution AS execution,
    MIN(o.phase) AS phase
  FROM models.execution_ops AS o
  WHERE o.execution IS NOT NULL
  GROUP BY o.run_id, o.device_id, o.execution
),

timed AS (
  SELECT
    e.run_id AS run_id,
    e.device_id AS device_id,
    f.phase AS phase,
    e.execution AS execution,
    CASE WHEN e.last_end_ps IS NULL THEN NULL ELSE GREATEST(e.start_ps - e.last_end_ps, 0) END AS gap_ps,
    e.start_ps - d.dispatch_ps AS dispatch_ps,
    CASE
      WHEN e.last_end_ps IS NULL OR d.dispatch_ps IS NULL THEN NULL
      ELSE GREATEST(LEAST(d.dispatch_ps, e.start_ps) - e.last_end_ps, 0)
    END AS late_ps
  FROM executions AS e
  LEFT JOIN phase_of_execution AS f
    ON e.run_id = f.run_id AND e.device_id = f.device_id AND e.execution = f.execution
  LEFT JOIN models.dispatches AS d
    ON e.run_id = d.run_id AND e.device_id = d.device_id AND e.execution = d.execution
  WHERE e.last_end_ps IS NOT NULL OR d.dispatch_ps IS NOT NULL
),

ranked AS (
  SELECT
    t.run_id AS run_id,
    t.device_id AS device_id,
    t.phase AS phase,
    t.gap_ps AS gap_ps,
    t.dispatch_ps AS dispatch_ps,
    t.late_ps AS late_ps,
    ROW_NUMBER() OVER (
      PARTITION BY t.run_id, t.device_id, t.phase, t.gap_ps IS NULL ORDER BY t.gap_ps, t.execution
    ) AS gap_place,
    COUNT(t.gap_ps) OVER (PARTITION BY t.run_id, t.device_id, t.phase) AS gaps,
    ROW_NUMBER() OVER (
      PARTITION BY t.run_id, t.device_id, t.phase, t.dispatch_ps IS NULL ORDER BY t.dispatch_ps, t.execution
    ) AS dispatch_place,
    COUNT(t.dispatch_ps) OVER (PARTITION BY t.run_id, t.device_id, t.phase) AS dispatches
  FROM timed AS t
)

SELECT
  r.run_id AS run_id,
  r.phase AS phase,
  r.device_id AS device_id,
  CAST(SUM(r.gap_ps) AS DOUBLE) / CAST(NULLIF(COUNT(r.gap_ps), 0) * 1000000 AS DOUBLE) AS gap_us,
  CAST(MIN(CASE WHEN r.gap_place * 100 >= r.gaps * 50 THEN r.gap_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000 AS DOUBLE) AS p50_us,
  CAST(MIN(CASE WHEN r.gap_place * 100 >= r.gaps * 90 THEN r.gap_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000 AS DOUBLE) AS p90_us,
  CAST(MIN(CASE WHEN r.gap_place * 100 >= r.gaps * 99 THEN r.gap_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000 AS DOUBLE) AS p99_us,
  COUNT(r.gap_ps) AS launches,
  CAST(SUM(r.dispatch_ps) AS DOUBLE) / CAST(NULLIF(COUNT(r.dispatch_ps), 0) * 1000000 AS DOUBLE) AS dispatch_us,
  CAST(MIN(CASE WHEN r.dispatch_place * 100 >= r.dispatches * 50 THEN r.dispatch_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000 AS DOUBLE) AS dispatch_p50_us,
  CAST(MIN(CASE WHEN r.dispatch_place * 100 >= r.dispatches * 90 THEN r.dispatch_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000 AS DOUBLE) AS dispatch_p90_us,
  CAST(MIN(CASE WHEN r.dispatch_place * 100 >= r.dispatches * 99 THEN r.dispatch_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000 AS DOUBLE) AS dispatch_p99_us,
  COUNT(r.dispatch_ps) AS dispatches,
  CAST(SUM(r.late_ps) AS DOUBLE) / CAST(NULLIF(COUNT(r.late_ps), 0) * 1000000 AS DOUBLE) AS late_us
FROM ranked AS r
GROUP BY r.run_id, r.phase, r.device_id
