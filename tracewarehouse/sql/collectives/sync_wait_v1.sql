/*---
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, phase, device_id]
value: wait_ms
needs: [recorded, ranks_to_compare]
description: >
  Time that a device waits in collectives for slower ranks. In each collective this is its own time less the shortest
  time over the ranks. It is at most the exposed time; in an asynchronous collective, at most the exposed time of the
  done.
notes: >
  Each exposed moment counts once, for the collective whose op runs. So a device that computes beside the collective
  does not wait, and one that is in two collectives at once waits once. If ranks are outside the capture, the shortest
  may be among them, so the value is a lower bound. Executions with only one rank in the capture are then left out.
ccl_bench: straggler_metrics
---*/
WITH waited AS (
  SELECT
    run_id, r.phase, r.device_id,
    SUM(r.wait_ps) AS wait_ps,
    COUNT(*) FILTER (WHERE r.is_partial) AS partial_collectives,
    COUNT(*) AS collectives
  FROM models.collective_ranks AS r
  LEFT JOIN models.predicted_runs AS g USING (run_id)
  WHERE (NOT r.is_partial OR r.ranks > 1) AND g.is_predicted IS NULL
  GROUP BY run_id, r.phase, r.device_id
)

SELECT
  w.run_id, w.phase, w.device_id,
  w.wait_ps / 1e9 AS wait_ms, -- Time waited.
  CASE WHEN w.partial_collectives > 0 THEN 'lower' END AS bound,
  -- Time waited per step; without steps the capture counts as one.
  w.wait_ps / (COALESCE(s.steps, 1) * 1e9) AS wait_ms_per_step,
  w.collectives -- Executions covered.
FROM waited AS w
LEFT JOIN models.phase_steps AS s
  ON w.run_id = s.run_id AND w.device_id = s.device_id AND w.phase IS NOT DISTINCT FROM s.phase
