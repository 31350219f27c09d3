/*---
metric: copy_overhead
version: 2
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: overhead
requires: SELECT w.run_id FROM models.copy_windows AS w
description: >
  Share of a phase in which a device copies and does not compute: time in the windows of copies that no op covers which is
  neither communication nor a copy, over the time of the phase's steps, all devices together. The window of an
  asynchronous copy lasts from its start half to the end of its done half. Each moment counts once, and for the step in
  which the window that covers it first begins; in a capture without steps the time is from a device's first op to the end of its last, and phase is NULL.
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none, and in a capture without steps.
  overhead: Exposed copy time over the time of the phase.
  exposed_ms: Exposed copy time of all devices.
  time_ms: Time of the phase of all devices.
  devices: Devices that ran the phase.
changed: >
  A window counts for the step in which it begins, as an op does; version 1 divides it where the next step begins.
ccl_bench: memory_transfer_overhead
---*/
WITH exposed AS (
  SELECT
    x.run_id AS run_id,
    x.device_id AS device_id,
    x.phase AS phase,
    x.is_in_step AS is_in_step,
    CAST(SUM(x.exposed_ps) AS BIGINT) AS exposed_ps
  FROM models.exposed_copies AS x
  GROUP BY x.run_id, x.device_id, x.phase, x.is_in_step
),

copying AS (
  SELECT w.run_id AS run_id
  FROM exposed AS w
  GROUP BY w.run_id
)

SELECT
  d.run_id AS run_id,
  d.phase AS phase,
  CAST(SUM(COALESCE(t.exposed_ps, 0)) AS DOUBLE) / CAST(SUM(d.span_ps) AS DOUBLE) AS overhead,
  CAST(SUM(COALESCE(t.exposed_ps, 0)) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS exposed_ms,
  CAST(SUM(d.span_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS time_ms,
  COUNT(*) AS devices
FROM models.device_phases AS d
INNER JOIN copying AS k ON d.run_id = k.run_id
LEFT JOIN exposed AS t
  ON
    d.run_id = t.run_id AND d.device_id = t.device_id AND t.is_in_step = (d.steps IS NOT NULL)
    AND COALESCE(d.phase, '') = COALESCE(t.phase, '')
GROUP BY d.run_id, d.phase
HAVING SUM(d.span_ps) > 0
