/*---
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, clock]
value: e2e_latency_ms
needs: [decode_after_prefill, one_prefill]
description: >
  Time from the start of prefill to the end of the last decode step: on the hosts' clock by their markers, on the devices'
  from the first prefill op to the end of the last decode op. A run without both phases has no row. Neither has a run with
  several prefills, or with steps that prefill and decode, because its requests cannot be told apart.
notes: >
  Decode steps before the prefill belong to other requests and do not count.
---*/
SELECT
  run_id, clock,
  (decode_end_ps - prefill_start_ps) / 1e9 AS e2e_latency_ms, -- Time from start to end.
  decode_steps -- Decode steps in it.
FROM models.request_times
WHERE prefill_steps = 1 AND mixed_steps = 0 AND decode_end_ps IS NOT NULL
