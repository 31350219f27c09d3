/*---
metric: device_idle
version: 1
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase, device_id]
value: idle_ratio
requires: SELECT o.run_id FROM main.ops AS o WHERE o.is_leaf AND o.device_id IS NOT NULL
description: >
  Share of a phase in which a device runs no op: 1 - busy / span. Busy is the union of its leaf ops, those between two
  steps included; span is the time of the phase's steps, each from its start to the next one's, so that waiting for the
  host counts. In a capture without steps the span is from the first op to the end of the last, and phase is NULL. Ops
  outside the steps of a run that has some are left out.
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none, and in a capture without steps.
  device_id: The device.
  idle_ratio: Share of the span without an op.
  busy_ms: Union of the leaf ops.
  span_ms: Time of the phase.
  steps: Steps of the phase on the device; NULL without steps.
changed: First version.
---*/
WITH busy AS (
  SELECT
    b.run_id AS run_id,
    b.device_id AS device_id,
    b.phase AS phase,
    b.step IS NOT NULL AS is_in_step,
    CAST(SUM(b.busy_ps) AS BIGINT) AS busy_ps,
    MAX(b.last_end_ps) - MIN(b.first_start_ps) AS ops_span_ps
  FROM models.device_busy AS b
  GROUP BY b.run_id, b.device_id, b.phase, b.step IS NOT NULL
),

devices_with_steps AS (
  SELECT
    d.run_id AS run_id,
    d.device_id AS device_id
  FROM models.phase_steps AS d
  GROUP BY d.run_id, d.device_id
),

devices_with_ops AS (
  SELECT
    e.run_id AS run_id,
    e.device_id AS device_id
  FROM busy AS e
  GROUP BY e.run_id, e.device_id
),

spans AS (
  SELECT
    s.run_id AS run_id,
    s.phase AS phase,
    s.device_id AS device_id,
    COALESCE(i.busy_ps, 0) AS busy_ps,
    s.time_ps AS span_ps,
    s.steps AS steps
  FROM models.phase_steps AS s
  INNER JOIN devices_with_ops AS t ON s.run_id = t.run_id AND s.device_id = t.device_id
  LEFT JOIN busy AS i
    ON
      s.run_id = i.run_id AND s.device_id = i.device_id AND i.is_in_step
      AND COALESCE(s.phase, '') = COALESCE(i.phase, '')
  UNION ALL
  SELECT
    o.run_id AS run_id,
    o.phase AS phase,
    o.device_id AS device_id,
    o.busy_ps AS busy_ps,
    o.ops_span_ps AS span_ps,
    CAST(NULL AS BIGINT) AS steps
  FROM busy AS o
  LEFT JOIN devices_with_steps AS w ON o.run_id = w.run_id AND o.device_id = w.device_id
  WHERE w.run_id IS NULL AND NOT o.is_in_step
)

SELECT
  p.run_id AS run_id,
  p.phase AS phase,
  p.device_id AS device_id,
  CAST(p.span_ps - p.busy_ps AS DOUBLE) / CAST(p.span_ps AS DOUBLE) AS idle_ratio,
  CAST(p.busy_ps AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS busy_ms,
  CAST(p.span_ps AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS span_ms,
  p.steps AS steps
FROM spans AS p
WHERE p.span_ps > 0
