/*---
status: experimental
unit: ratio
polarity: none
grain: [run_id, phase, basis]
value: share
ranges: {share: [0, 1]}
needs: [predicted, timed_ops]
description: >
  Share of the predicted device time that rests on each basis: the compiler's cycles, the links, a model or a measured
  median of a kernel, bytes through HBM, gathers, or waits for another queue. The more of it is modelled, the wider is the
  range.
notes: >
  It counts what the core does, one op after the other. A transfer beside it counts through the wait in its done.
---*/
WITH totals AS (
  SELECT run_id, phase, SUM(time_ps) AS time_ps
  FROM models.prediction_times
  GROUP BY run_id, phase
)

SELECT
  t.run_id,
  t.phase, -- prefill or decode.
  t.basis, -- What the time rests on, as of ops.
  t.time_ps / CAST(a.time_ps AS DOUBLE) AS share, -- Share of the step's device time.
  t.time_ps / 1e9 AS time_ms, -- Time of a step's ops with this basis.
  t.low_ps / 1e9 AS low_ms, -- The same with each op at the low end of its range.
  t.high_ps / 1e9 AS high_ms, -- The same with each op at the high end.
  t.extrapolated_ps / CAST(NULLIF(t.time_ps, 0) AS DOUBLE) AS extrapolated_share, -- Part of the time for layers that were not compiled.
  t.ops -- Ops of a step.
FROM models.prediction_times AS t
INNER JOIN totals AS a ON t.run_id = a.run_id AND t.phase IS NOT DISTINCT FROM a.phase
WHERE a.time_ps > 0
