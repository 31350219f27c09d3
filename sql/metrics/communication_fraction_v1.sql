/*---
metric: communication_fraction
version: 1
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: fraction
requires: SELECT c.run_id FROM main.collectives AS c
description: >
  Share of a phase in which devices communicate and compute nothing: exposed communication over the time of the phase's
  steps, all devices together, so that a device weighs by its time. In a capture without steps the time is from a
  device's first op to the end of its last. Devices without communication count with 0.
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none, and in a capture without steps.
  fraction: Exposed communication over the time of the phase.
  min_fraction: That of the device that has least.
  max_fraction: That of the device that has most.
  devices: Devices that ran the phase.
changed: First version.
ccl_bench: communication_fraction
---*/
WITH exposed AS (
  SELECT
    c.run_id AS run_id,
    c.phase AS phase,
    c.device_id AS device_id,
    CAST(SUM(c.exposed_ps) AS BIGINT) AS exposed_ps
  FROM models.communication_ops AS c
  GROUP BY c.run_id, c.phase, c.device_id
),

communicating AS (
  SELECT e.run_id AS run_id
  FROM exposed AS e
  GROUP BY e.run_id
),

compared AS (
  SELECT
    d.run_id AS run_id,
    d.phase AS phase,
    d.span_ps AS span_ps,
    COALESCE(x.exposed_ps, 0) AS exposed_ps
  FROM models.device_phases AS d
  INNER JOIN communicating AS k ON d.run_id = k.run_id
  LEFT JOIN exposed AS x
    ON
      d.run_id = x.run_id AND d.device_id = x.device_id
      AND COALESCE(d.phase, '') = COALESCE(x.phase, '')
  WHERE d.span_ps > 0
)

SELECT
  p.run_id AS run_id,
  p.phase AS phase,
  CAST(SUM(p.exposed_ps) AS DOUBLE) / CAST(SUM(p.span_ps) AS DOUBLE) AS fraction,
  MIN(CAST(p.exposed_ps AS DOUBLE) / CAST(p.span_ps AS DOUBLE)) AS min_fraction,
  MAX(CAST(p.exposed_ps AS DOUBLE) / CAST(p.span_ps AS DOUBLE)) AS max_fraction,
  COUNT(*) AS devices
FROM compared AS p
GROUP BY p.run_id, p.phase
