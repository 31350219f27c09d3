/*---
description: >
  Steps of a run over all its devices. A step lasts from the first device's start to the first start of the next step;
  the last one lasts to its latest end. A step in which devices run different phases is mixed.
---*/
WITH united AS (
  SELECT
    run_id, step,
    CASE WHEN COUNT(DISTINCT phase) > 1 THEN 'mixed' ELSE MIN(phase) END AS phase,
    MIN(start_ps) AS start_ps,
    MAX(end_ps) AS end_ps,
    MAX(step_ps) AS longest_ps,
    MIN(CASE WHEN is_timed THEN 1 ELSE 0 END) = 1 AS is_timed,
    MAX(CASE WHEN is_last THEN 1 ELSE 0 END) = 1 AS is_last
  FROM models.steps
  WHERE clock = 'device'
  GROUP BY run_id, step
)

SELECT
  run_id, step, phase,
  start_ps, -- Earliest start over the devices.
  -- Earliest start of the next step; for the last step, its latest end.
  COALESCE(LEAD(start_ps) OVER (PARTITION BY run_id ORDER BY start_ps, step), end_ps) AS until_ps,
  longest_ps, -- Time of the step on the slowest device, start to next start.
  is_timed, -- Its whole time is known on every device that ran it, as models.steps says.
  is_last -- True if it is the last step of a device that ran it.
FROM united
