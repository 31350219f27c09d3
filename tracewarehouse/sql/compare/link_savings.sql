/*---
macro: link_savings
parameters:
  runs: The runs, as a list of run ids.
reads_runs: [runs]
description: >
  Share of the time of each run and phase that faster links would save, by how much faster they are, as stored values of
  ici_bandwidth_utility say it. Links of today's bandwidth, factor 1, save nothing.
---*/
WITH saved AS (
  SELECT name, model, phase, factor, value / 100 AS saved
  FROM macros.run_values(runs)
  WHERE metric = 'ici_bandwidth_utility'
)

SELECT
  name, -- Name of the run.
  model, -- Model or model family; unknown where neither is known.
  phase,
  factor, -- How many times the bandwidth of today's links: 1, 2, 4 or infinite.
  saved -- Share of the phase's time.
FROM saved
UNION ALL
SELECT DISTINCT name, model, phase, '1' AS factor, 0 AS saved
FROM saved
