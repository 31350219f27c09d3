/*---
parameters:
  run: The run, by its id.
  most: The most categories.
reads_runs: [run]
description: The categories of metrics.op_time_share with the largest shares, each by its largest over the phases.
---*/
WITH shares AS (
  SELECT
    phase,
    COALESCE(category, 'unnamed') AS category,
    share, ops,
    MAX(share) OVER (PARTITION BY category) AS top_share
  FROM metrics.op_time_share
  WHERE run_id = run
)

SELECT
  phase,
  category, -- The profiler's category of the ops, or unnamed.
  share, -- Share of the phase's op time.
  ops, -- Number of ops.
  top_share -- Largest share over the phases.
FROM shares
QUALIFY DENSE_RANK() OVER (ORDER BY top_share DESC, category) <= most
