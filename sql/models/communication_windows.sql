/*---
model: communication_windows
description: >
  The windows of the collectives on each device, with the part of each that no earlier window of the same step covers;
  the sum of these parts is the length of the windows' union.
columns:
  run_id: The run.
  event_id: The collective's event.
  device_id: The device.
  phase: Phase; NULL outside of phases.
  step: Step; NULL outside of steps.
  kind: Kind of collective.
  axis: Mesh axes of its groups.
  start_ps: Start of the window.
  end_ps: End of the window, exclusive.
  new_ps: Time of the window that no window before it in the same step covers.
---*/
WITH windows AS (
  SELECT
    c.run_id AS run_id,
    c.event_id AS event_id,
    c.device_id AS device_id,
    c.phase AS phase,
    c.step AS step,
    c.kind AS kind,
    c.axis AS axis,
    c.start_ps AS start_ps,
    c.end_ps AS end_ps,
    MAX(c.end_ps) OVER (
      PARTITION BY c.run_id, c.device_id, c.phase, c.step ORDER BY c.start_ps, c.event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS covered_until_ps
  FROM main.collectives AS c
)

SELECT
  w.run_id AS run_id,
  w.event_id AS event_id,
  w.device_id AS device_id,
  w.phase AS phase,
  w.step AS step,
  w.kind AS kind,
  w.axis AS axis,
  w.start_ps AS start_ps,
  w.end_ps AS end_ps,
  GREATEST(w.end_ps - GREATEST(w.start_ps, COALESCE(w.covered_until_ps, w.start_ps)), 0) AS new_ps
FROM windows AS w
