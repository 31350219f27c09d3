/*---
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase, device_id]
value: idle_ratio
ranges: {idle_ratio: [0, 1]}
needs: [recorded, device_ops]
description: >
  Share of a phase in which a device runs no op, waiting for the host included: 1 - busy / span.
notes: >
  Busy is the union of its leaf ops, including those between two steps. Span is the time of the phase's steps, each from
  its start to the start of the next. The last step counts only in a phase that has no other (models.timed_spans). Idle
  time per step has columns by what ends it (models.idle_parts). Only gaps of more than a microsecond between two ops of
  a step count there. The rest is time between steps. If ops reach beyond these steps by more than the idle time, the
  share is 0. Ops outside of a run's steps are left out.
---*/
WITH parts AS (
  SELECT
    run_id, device_id, phase,
    SUM(idle_ps) FILTER (WHERE part = 'before a launch') AS launch_ps,
    SUM(idle_ps) FILTER (WHERE part = 'before a pipeline''s tick') AS tick_ps,
    SUM(idle_ps) FILTER (WHERE part = 'before another collective') AS collective_ps,
    SUM(idle_ps) FILTER (WHERE part = 'before another op') AS other_ps,
    SUM(idle_ps) FILTER (WHERE part = 'between steps') AS between_ps
  FROM models.idle_parts
  GROUP BY run_id, device_id, phase
)

SELECT
  t.run_id, t.phase, t.device_id,
  GREATEST(t.span_ps - t.busy_ps, 0) / t.span_ps AS idle_ratio, -- Share of the span without an op.
  CASE WHEN t.is_last THEN 'lower' END AS bound,
  t.busy_ps / 1e9 AS busy_ms, -- Union of the leaf ops.
  t.span_ps / 1e9 AS span_ms, -- Time of the steps that count.
  -- Idle time per step before the first op of another execution of a program; NULL without steps, as in all parts.
  COALESCE(p.launch_ps, 0) / (t.steps * 1e9) AS before_launch_ms,
  -- Before a collective on axis pp (or its start or done), by which a pipeline's tick hands over.
  COALESCE(p.tick_ps, 0) / (t.steps * 1e9) AS before_tick_ms,
  COALESCE(p.collective_ps, 0) / (t.steps * 1e9) AS before_collective_ms, -- Before any other collective.
  COALESCE(p.other_ps, 0) / (t.steps * 1e9) AS before_other_ms, -- Before other ops.
  p.between_ps / (t.steps * 1e9) AS between_steps_ms, -- Before a step's first op and after its last.
  t.steps -- Steps that count of the phase on the device; NULL without steps.
FROM models.timed_phases AS t
LEFT JOIN parts AS p ON t.run_id = p.run_id AND t.device_id = p.device_id AND t.phase IS NOT DISTINCT FROM p.phase
LEFT JOIN models.predicted_runs AS g ON t.run_id = g.run_id
WHERE g.is_predicted IS NULL
