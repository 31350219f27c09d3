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
  Share of a phase in which a device runs no op: 1 - busy / span. Busy is the union of its leaf ops, including those
  between two steps. Span is the time of the phase's steps, each from its start to the start of the next, so waiting for
  the host counts. As in step_time, the last step of a capture is left out, because the wait after it is not known; only
  in a phase without other steps does it count, with its own duration, and the share is a lower bound (models.timed_spans). If ops reach beyond these
  steps by more than the idle time, the share is 0. In a capture without steps, the span is from the first op to the end
  of the last, and phase is NULL. If a run has steps, ops outside of them are left out. XProf counts from a device's
  first op to its last.
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
