/*---
metric: sync_wait
version: 1
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, phase, device_id]
value: wait_ms
requires: SELECT i.run_id FROM models.collective_instances AS i WHERE NOT i.is_partial
description: >
  Time that a device waits in collectives for slower ranks: its own time in each beyond the shortest over the ranks, summed
  over the phase. Executions with ranks outside the capture are left out.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  device_id: The device.
  wait_ms: Time waited.
  wait_ms_per_step: The same per step; without steps the capture counts as one.
  collectives: Executions that it covers.
changed: First version.
ccl_bench: straggler_metrics
---*/
WITH waited AS (
  SELECT
    c.run_id AS run_id,
    c.phase AS phase,
    c.device_id AS device_id,
    CAST(SUM(c.end_ps - c.start_ps - i.transfer_ps) AS BIGINT) AS wait_ps,
    COUNT(*) AS collectives
  FROM main.collectives AS c
  INNER JOIN models.collective_instances AS i ON c.run_id = i.run_id AND c.instance = i.instance
  WHERE NOT i.is_partial
  GROUP BY c.run_id, c.phase, c.device_id
)

SELECT
  w.run_id AS run_id,
  w.phase AS phase,
  w.device_id AS device_id,
  CAST(w.wait_ps AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS wait_ms,
  CAST(w.wait_ps AS DOUBLE) / CAST(COALESCE(s.steps, 1) * 1000000000 AS DOUBLE) AS wait_ms_per_step,
  w.collectives AS collectives
FROM waited AS w
LEFT JOIN models.phase_steps AS s
  ON
    w.run_id = s.run_id AND w.device_id = s.device_id
    AND COALESCE(w.phase, '') = COALESCE(s.phase, '')
