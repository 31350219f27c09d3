/*---
metric: dcn_bandwidth_utility
version: 1
status: experimental
unit: "%"
polarity: none
grain: [run_id, phase, factor]
value: saved_percent
ranges: {saved_percent: [0, 100]}
needs: [timed, dcn_in_steps]
description: >
  How much shorter a phase could be at most with a data center network that is faster by a factor: 100 (T - T') / T. T
  is the time of the phase's steps, all devices together; T' lacks (1 - 1 / factor) of the time in which collectives
  between slices are exposed.
notes: >
  Each moment counts once, for the collective whose op runs. Latency and waiting for late slices are part of the exposed
  time and would stay, so the value is an upper bound. Steps are those of models.timed_spans.
  ici_bandwidth_utility asks the same of the links within a slice.
changed: First version.
---*/
WITH exposed AS (
  SELECT run_id, phase, COUNT(*) AS executions, SUM(exposed_added_ps) AS exposed_ps
  FROM models.timed_collectives
  WHERE link = 'dcn'
  GROUP BY run_id, phase
),

timed AS (
  SELECT run_id, phase, SUM(span_ps) AS span_ps
  FROM models.timed_phases
  GROUP BY run_id, phase
)

SELECT
  run_id, e.phase,
  f.factor, -- How many times faster the network is - 2, 4 or infinite.
  e.exposed_ps * f.saved_quarters * 25 / t.span_ps AS saved_percent, -- Share of the time saved.
  'upper' AS bound,
  e.exposed_ps * f.saved_quarters / 4e9 AS saved_ms, -- Time saved on all devices.
  t.span_ps / 1e9 AS time_ms, -- Time of the phase, of all devices together.
  e.executions -- Executions of collectives between slices, on all devices.
FROM exposed AS e
INNER JOIN models.faster_links AS f USING (run_id)
INNER JOIN timed AS t ON e.run_id = t.run_id AND e.phase IS NOT DISTINCT FROM t.phase
