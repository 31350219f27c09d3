/*---
metric: e2e_latency
version: 1
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, clock]
value: e2e_latency_ms
requires: SELECT s.run_id FROM models.steps AS s WHERE s.phase = 'prefill'
description: >
  Time from the start of prefill to the end of the last decode step: on the hosts' clock by their markers, on the devices'
  from the first prefill op to the end of the last decode op over all devices. There is no row without both phases.
  Decode steps before the first prefill are of other requests and do not count.
columns:
  run_id: The run.
  clock: host or device.
  e2e_latency_ms: Time from start to end.
  prefill_steps: Prefill steps in it.
  decode_steps: Decode steps in it.
changed: First version.
---*/
SELECT
  t.run_id AS run_id,
  t.clock AS clock,
  CAST(t.decode_end_ps - t.prefill_start_ps AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS e2e_latency_ms,
  t.prefill_steps AS prefill_steps,
  t.decode_steps AS decode_steps
FROM models.request_times AS t
WHERE t.prefill_start_ps IS NOT NULL AND t.decode_end_ps IS NOT NULL
