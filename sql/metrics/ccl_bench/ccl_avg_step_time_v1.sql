/*---
metric: ccl_avg_step_time
version: 1
status: compatibility
unit: s
polarity: lower_is_better
grain: [run_id]
value: avg_step_time_s
requires: SELECT run_id FROM main.host_events WHERE name = '$core.py:331 step'
description: >
  Reproduces CCL-Bench's avg_step_time with its faults, to explain a published number; use step_time instead. It reads
  host events named exactly $core.py:331 step, a line number of one version of vLLM: mean duration without the first and
  the last, prefill and decode alike, without the gaps between. Its fallback, span over the iterations of the card, is
  not reproduced.
changed: First version.
ccl_bench: avg_step_time
---*/
SELECT
  run_id, -- The run.
  SUM(duration_ps) / (COUNT(*) * 1e12) AS avg_step_time_s, -- Mean duration.
  COUNT(*) AS steps -- Events that it covers.
FROM models.ccl_steps
WHERE place > 1 AND place < places
GROUP BY run_id
