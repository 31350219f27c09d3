/*---
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, phase, step]
value: step_time_ms
needs: [followed_step]
description: >
  Time of each step from its start to the next step's start, on the slowest device. The last step has no successor, so
  it has no value.
notes: >
  last_step_ms holds the last step's own duration, which leaves out the gap to a next step; do not compare it with
  times of steps. A capture of a single step has no value. A host may be done with a step long before its devices, or
  wait for them: mark_ms has its side. If the devices of a run have no steps, its hosts' markers
  give the time. In a capture without marks, every execution of a program is a step, and phase is NULL.
ccl_bench: avg_step_time
---*/
WITH clocks AS (
  SELECT run_id, MIN(clock) AS clock
  FROM models.steps
  GROUP BY run_id
),

marks AS (
  SELECT run_id, step, MAX(end_ps - start_ps) / 1e9 AS mark_ms
  FROM models.steps
  WHERE clock = 'host'
  GROUP BY run_id, step
)

SELECT
  run_id,
  s.phase, -- prefill, decode, or mixed for a batch that does both; NULL for a step of none.
  s.step,
  -- Time of the step on the slowest device; NULL for the last step.
  MAX(s.step_ps) FILTER (WHERE NOT s.is_last) / 1e9 AS step_time_ms,
  MIN(s.step_ps) FILTER (WHERE NOT s.is_last) / 1e9 AS min_ms, -- Time of the step on the fastest device.
  -- Duration on the slowest of the devices that ran it last; NULL if all devices ran a later step.
  MAX(s.step_ps) FILTER (WHERE s.is_last) / 1e9 AS last_step_ms,
  MIN(m.mark_ms) AS mark_ms, -- Time of the step's mark on a host, the longest; NULL where no host marks it.
  COUNT(*) AS devices, -- Devices that ran it; hosts if the clock is theirs.
  MIN(clock) AS clock,
  MIN(s.source) AS source -- Where the steps come from.
FROM models.steps AS s
INNER JOIN clocks USING (run_id, clock)
LEFT JOIN marks AS m USING (run_id, step)
GROUP BY run_id, s.phase, s.step
