/*---
metric: bubble
version: 2
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, phase, device_id]
value: bubble_ms
requires: SELECT o.run_id FROM main.ops AS o WHERE o.is_leaf AND o.device_id IS NOT NULL AND o.step IS NOT NULL
description: >
  Time per step in which a device runs no op between the first and the last of the step, counting gaps above the
  threshold only, and what comes after them. The gap from one step to the next is no bubble but host time. A capture
  without steps has no row.
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none.
  device_id: The device.
  bubble_ms: Time of all gaps per step.
  before_launch_ms: That of gaps before the first op of another execution of a program.
  before_tick_ms: >
    That of gaps before a collective on axis pp, or the start or done of one, with which a tick of a pipeline hands over.
  before_collective_ms: That of gaps before any other collective, or the start or done of one.
  before_other_ms: That of gaps before other ops.
  gaps: Number of gaps over all steps.
  threshold_us: Gaps up to this long are not counted.
  steps: Steps of the phase on the device.
changed: >
  Gaps before the hand-over of a pipeline, a collective on axis pp, are apart; version 1 had them among those before other
  collectives.
---*/
WITH handing AS (
  SELECT
    c.run_id AS run_id,
    c.event_id AS event_id
  FROM models.communication_ops AS c
  WHERE c.axis = 'pp'
  GROUP BY c.run_id, c.event_id
),

summed AS (
  SELECT
    g.run_id AS run_id,
    g.device_id AS device_id,
    g.phase AS phase,
    CAST(SUM(g.gap_ps) AS BIGINT) AS gap_ps,
    CAST(SUM(CASE WHEN g.next = 'launch' THEN g.gap_ps ELSE 0 END) AS BIGINT) AS launch_ps,
    CAST(SUM(CASE WHEN g.next = 'collective' AND h.event_id IS NOT NULL THEN g.gap_ps ELSE 0 END) AS BIGINT) AS tick_ps,
    CAST(SUM(CASE WHEN g.next = 'collective' AND h.event_id IS NULL THEN g.gap_ps ELSE 0 END) AS BIGINT)
      AS collective_ps,
    COUNT(*) AS gaps
  FROM models.device_gaps AS g
  LEFT JOIN handing AS h ON g.run_id = h.run_id AND g.event_id = h.event_id
  WHERE g.gap_ps > 1000000
  GROUP BY g.run_id, g.device_id, g.phase
),

running AS (
  SELECT
    d.run_id AS run_id,
    d.device_id AS device_id,
    d.phase AS phase,
    d.steps AS steps,
    COALESCE(s.gap_ps, 0) AS gap_ps,
    COALESCE(s.launch_ps, 0) AS launch_ps,
    COALESCE(s.tick_ps, 0) AS tick_ps,
    COALESCE(s.collective_ps, 0) AS collective_ps,
    COALESCE(s.gaps, 0) AS gaps
  FROM models.device_phases AS d
  LEFT JOIN summed AS s
    ON
      d.run_id = s.run_id AND d.device_id = s.device_id
      AND COALESCE(d.phase, '') = COALESCE(s.phase, '')
  WHERE d.steps IS NOT NULL AND d.busy_ps > 0
)

SELECT
  r.run_id AS run_id,
  r.phase AS phase,
  r.device_id AS device_id,
  CAST(r.gap_ps AS DOUBLE) / CAST(r.steps * 1000000000 AS DOUBLE) AS bubble_ms,
  CAST(r.launch_ps AS DOUBLE) / CAST(r.steps * 1000000000 AS DOUBLE) AS before_launch_ms,
  CAST(r.tick_ps AS DOUBLE) / CAST(r.steps * 1000000000 AS DOUBLE) AS before_tick_ms,
  CAST(r.collective_ps AS DOUBLE) / CAST(r.steps * 1000000000 AS DOUBLE) AS before_collective_ms,
  CAST(r.gap_ps - r.launch_ps - r.tick_ps - r.collective_ps AS DOUBLE) / CAST(r.steps * 1000000000 AS DOUBLE)
    AS before_other_ms,
  r.gaps AS gaps,
  CAST(1 AS BIGINT) AS threshold_us,
  r.steps AS steps
FROM running AS r
