/*---
metric: ccl_total_communication_time
version: 1
status: compatibility
unit: s
polarity: lower_is_better
grain: [run_id]
value: communication_s
requires: SELECT run_id FROM models.ccl_events WHERE kind IS NOT NULL
description: >
  Reproduces CCL-Bench's total_communication_time with its faults, to explain a published number; use communication_time
  instead. Duration of all events that are a collective, or the start or done of one, summed over the devices, so that
  it grows with their number. It is that of the whole capture: the division by the card's number of iterations, and the
  fallback to host frames, are not reproduced.
changed: First version.
ccl_bench: total_communication_time
---*/
SELECT
  run_id, -- The run.
  SUM(duration_ps) / 1e12 AS communication_s, -- Duration over all devices.
  COUNT(*) AS events -- Events that it covers.
FROM models.ccl_events
WHERE kind IS NOT NULL
GROUP BY run_id
