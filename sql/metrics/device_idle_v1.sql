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
  the host counts. In a capture without steps, the span is from the first op to the end of the last, and phase is NULL.
  If a run has steps, ops outside of them are left out. XProf counts from a device's first op to its last.
changed: First version.
---*/
SELECT
  run_id, -- The run.
  phase, -- Phase; NULL for steps without one, and in a capture without steps.
  device_id, -- The device.
  (span_ps - busy_ps) / span_ps AS idle_ratio, -- Share of the span without an op.
  busy_ps / 1e9 AS busy_ms, -- Union of the leaf ops.
  span_ps / 1e9 AS span_ms, -- Time of the phase.
  steps -- Steps of the phase on the device; NULL without steps.
FROM models.device_phases
WHERE span_ps > 0
