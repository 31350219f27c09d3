/*---
metric: ccl_total_communication_time
version: 1
status: deprecated
unit: s
polarity: lower_is_better
grain: [run_id]
value: communication_s
requires: SELECT e.run_id FROM models.ccl_events AS e WHERE e.kind IS NOT NULL
description: >
  Reproduces CCL-Bench's total_communication_time with its faults, to explain a published number; use communication_time
  instead. Duration of all events that are a collective, or the start or done of one, summed over the devices, so that
  it grows with their number. It is that of the whole capture: the division by the card's number of iterations, and the
  fallback to host frames, are not reproduced.
columns:
  run_id: The run.
  communication_s: Duration over all devices.
  events: Events that it covers.
changed: First version.
deprecated: Only explains numbers that CCL-Bench published; use communication_time instead.
ccl_bench: total_communication_time
---*/
SELECT
  e.run_id AS run_id,
  CAST(SUM(e.duration_ps) AS DOUBLE) / CAST(1000000000000 AS DOUBLE) AS communication_s,
  COUNT(*) AS events
FROM models.ccl_events AS e
WHERE e.kind IS NOT NULL
GROUP BY e.run_id
