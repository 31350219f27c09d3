/*---
model: run_steps
description: >
  Steps of a run over all its devices: from the first device's start to the first start of the next step, the last to its
  latest end.
columns:
  run_id: The run.
  step: Step.
  phase: Phase; NULL for a step of none.
  start_ps: Earliest start over the devices.
  until_ps: Earliest start of the next step; of the last step its latest end.
  longest_ps: Time of the step on the slowest device, start to next start.
---*/
WITH united AS (
  SELECT
    s.run_id AS run_id,
    s.step AS step,
    MIN(s.phase) AS phase,
    MIN(s.start_ps) AS start_ps,
    MAX(s.end_ps) AS end_ps,
    MAX(s.step_ps) AS longest_ps
  FROM models.steps AS s
  WHERE s.clock = 'device'
  GROUP BY s.run_id, s.step
)

SELECT
  u.run_id AS run_id,
  u.step AS step,
  u.phase AS phase,
  u.start_ps AS start_ps,
  COALESCE(LEAD(u.start_ps) OVER (PARTITION BY u.run_id ORDER BY u.start_ps, u.step), u.end_ps) AS until_ps,
  u.longest_ps AS longest_ps
FROM united AS u
