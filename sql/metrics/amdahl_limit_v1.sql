/*---
metric: amdahl_limit
version: 1
status: stable
unit: x
polarity: none
grain: [run_id, phase]
value: speedup
requires: SELECT c.run_id FROM main.collectives AS c
description: >
  How many times faster a phase would be if all exposed communication vanished, the waiting in it included: its time over
  its time without that, all devices together, so that devices weigh by their time. This is Amdahl's law with the
  communication fraction as the part that is sped up without limit. The time of a phase is that of its steps; in a capture
  without steps it is from a device's first op to the end of its last.
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none, and in a capture without steps.
  speedup: Time over time without exposed communication; 1 without any.
  slowest_speedup: Longest time of a device over the longest that would remain.
  exposed_ms: Exposed communication of all devices.
  time_ms: Time of the phase of all devices.
  devices: Devices that ran the phase.
changed: First version.
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
)

SELECT
  p.run_id AS run_id,
  p.phase AS phase,
  CAST(SUM(p.span_ps) AS DOUBLE) / CAST(SUM(p.span_ps) - SUM(p.exposed_ps) AS DOUBLE) AS speedup,
  CAST(MAX(p.span_ps) AS DOUBLE) / CAST(NULLIF(MAX(p.span_ps - p.exposed_ps), 0) AS DOUBLE) AS slowest_speedup,
  CAST(SUM(p.exposed_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS exposed_ms,
  CAST(SUM(p.span_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS time_ms,
  COUNT(*) AS devices
FROM compared AS p
GROUP BY p.run_id, p.phase
HAVING SUM(p.span_ps) > SUM(p.exposed_ps)
