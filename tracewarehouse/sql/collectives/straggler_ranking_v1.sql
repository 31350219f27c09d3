/*---
status: experimental
unit: ms
polarity: none
grain: [run_id, phase, axis, device_id]
value: caused_wait_ms
ranges: {last_share: [0, 1]}
needs: [recorded, several_ranks]
description: >
  Which device the others wait for. A row says how often a device starts a collective last, and how long all ranks
  together wait in these executions, as in sync_wait. Where several devices start last together, none of them counts as
  last.
notes: >
  Executions with ranks outside the capture count only in phases and axes that have no others. The values then describe
  the captured ranks alone.
---*/
WITH ranks AS (
  SELECT
    run_id, c.device_id, i.phase, i.axis, i.is_partial, i.wait_ps, c.start_ps,
    c.start_ps - i.first_start_ps AS lateness_ps,
    LAG(c.start_ps) OVER (PARTITION BY run_id, instance ORDER BY c.start_ps) AS previous_start_ps,
    c.start_ps = i.last_start_ps AND COUNT(*) OVER (PARTITION BY run_id, instance, c.start_ps) = 1 AS is_last
  FROM main.collectives AS c
  INNER JOIN models.collective_instances AS i USING (run_id, instance)
  LEFT JOIN models.predicted_runs AS g USING (run_id)
  WHERE i.ranks > 1 AND g.is_predicted IS NULL
),

chosen AS (
  SELECT *
  FROM ranks
  QUALIFY is_partial = MIN(is_partial) OVER (PARTITION BY run_id, phase, axis) -- whole executions, if there are any
),

summed AS (
  SELECT
    run_id, phase, axis, device_id,
    COUNT(*) AS executions,
    COUNT(*) FILTER (WHERE is_last) AS last_executions,
    COUNT(*) FILTER (WHERE is_partial) AS partial_executions,
    COALESCE(SUM(wait_ps) FILTER (WHERE is_last), 0) AS caused_wait_ps,
    COALESCE(SUM(start_ps - previous_start_ps) FILTER (WHERE is_last), 0) AS lead_ps,
    SUM(lateness_ps) AS lateness_ps
  FROM chosen
  GROUP BY run_id, phase, axis, device_id
)

SELECT
  run_id, phase, axis, device_id,
  caused_wait_ps / 1e9 AS caused_wait_ms, -- Time that all ranks together wait in the executions where it is last.
  -- Place among the devices of the phase and axis, 1 for the one that causes most waiting; NULL if it is never last.
  CASE
    WHEN last_executions > 0 THEN RANK() OVER (
      PARTITION BY run_id, phase, axis ORDER BY caused_wait_ps DESC, last_executions DESC
    )
  END AS place,
  last_executions / executions AS last_share, -- Share of its executions in which it alone is last.
  last_executions, -- Number of these.
  executions, -- Executions in which it takes part.
  -- Time by which it starts later than all others, over the executions where it alone is last.
  lead_ps / 1e9 AS lead_ms,
  lateness_ps / (executions * 1e6) AS lateness_us, -- Start after the first rank's, mean over all its executions.
  partial_executions > 0 AS is_partial -- True if ranks are missing from the capture; these may have been later.
FROM summed
