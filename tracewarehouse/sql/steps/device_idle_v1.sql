/*---
metric: device_idle
version: 1
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase, device_id]
value: idle_ratio
ranges: {idle_ratio: [0, 1]}
needs: [device_ops]
description: >
  Share of a phase in which a device runs no op, waiting for the host included: 1 - busy / span.
notes: >
  Busy is the union of its leaf ops, including those between two steps. Span is the time of the phase's steps, each
  from its start to the start of the next. The last step counts only in a phase that has no other
  (models.timed_spans). If ops reach beyond these steps by more than the idle time, the share is 0. Ops outside of a
  run's steps are left out.
changed: First version.
---*/
SELECT
  run_id, phase, device_id,
  GREATEST(span_ps - busy_ps, 0) / span_ps AS idle_ratio, -- Share of the span without an op.
  CASE WHEN is_last THEN 'lower' END AS bound,
  busy_ps / 1e9 AS busy_ms, -- Union of the leaf ops.
  span_ps / 1e9 AS span_ms, -- Time of the steps that count.
  steps -- Steps that count of the phase on the device; NULL without steps.
FROM models.timed_phases
