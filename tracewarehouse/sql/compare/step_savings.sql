/*---
parameters: [runs]
reads_runs: [runs]
description: >
  How much shorter a step of each phase would be if communication or copies hid behind other work, if nothing waited, or
  if links, memory or matrix units were twice as fast, and nothing else changed.
notes: >
  The shares are those of macros.step_shares and, for waiting, of models.collective_ranks. They overlap, so they do not
  add up. A share that is not known has no row. Time that hides is no longer than the other work of the step.
---*/
WITH steps AS (
  SELECT run_id, phase, SUM(span_ps) AS time_ps
  FROM models.timed_phases
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id, phase
),

timed AS (
  SELECT run_id, event_id
  FROM models.timed_collectives
  WHERE LIST_CONTAINS(runs, run_id)
),

waits AS (
  SELECT run_id, r.phase, SUM(r.wait_ps) AS wait_ps
  FROM models.collective_ranks AS r
  INNER JOIN timed USING (run_id, event_id)
  WHERE NOT r.is_partial
  GROUP BY run_id, r.phase
),

shares AS (
  SELECT
    run_id, phase,
    CASE part
      WHEN 'exposed communication' THEN 'communication_fraction'
      WHEN 'waiting for copies' THEN 'copy_overhead'
      ELSE 'device_idle'
    END AS metric,
    CASE part
      WHEN 'exposed communication' THEN 'communication hidden behind other work'
      WHEN 'waiting for copies' THEN 'copies hidden behind other work'
      ELSE 'devices that never idle'
    END AS change,
    -- what hides takes as long as before, and so does the work in front of it
    CASE part
      WHEN 'idle' THEN share
      ELSE LEAST(
        share, 1 - share - COALESCE(MAX(CASE part WHEN 'idle' THEN share END) OVER (PARTITION BY run_id, phase), 0)
      )
    END AS saved,
    TRUE AS is_upper_bound
  FROM macros.step_shares(runs)
  WHERE part IN ('exposed communication', 'waiting for copies', 'idle')
  UNION ALL
  SELECT
    s.run_id, s.phase, 'sync_wait' AS metric, 'no waiting for late devices in collectives' AS change,
    w.wait_ps / s.time_ps AS saved,
    TRUE AS is_upper_bound
  FROM steps AS s
  INNER JOIN waits AS w ON s.run_id = w.run_id AND s.phase IS NOT DISTINCT FROM w.phase
  UNION ALL
  SELECT
    run_id, phase, metric,
    resource || ' twice as fast' AS change,
    SUM(saved ORDER BY saved) AS saved,
    BOOL_OR(is_upper_bound) AS is_upper_bound
  FROM macros.speedups(runs)
  WHERE factor = '2'
  GROUP BY run_id, phase, metric, resource
)

SELECT
  run_id,
  COALESCE(phase, '') AS phase, -- Phase; empty for steps of none.
  metric, -- The metric that the share comes from.
  change, -- What would cost nothing or be twice as fast.
  saved, -- Share of the step's time.
  is_upper_bound -- The share is an upper bound; false where a fit or the rules of a prediction tell the share itself.
FROM shares
WHERE saved IS NOT NULL
