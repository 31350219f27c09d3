/*---
metric: ccl_tpot
version: 1
status: compatibility
unit: s
polarity: lower_is_better
grain: [run_id]
value: tpot_s
requires: SELECT run_id FROM main.host_events WHERE name = '$core.py:331 step'
description: >
  Reproduces CCL-Bench's tpot with its faults, to explain a published number; use tpot instead. It reads host events
  named exactly $core.py:331 step, a line number of one version of vLLM, and takes the mean duration of all but the
  first as decode steps, prefills among them, without the gaps between.
changed: First version.
ccl_bench: tpot
---*/
SELECT
  run_id, -- The run.
  SUM(duration_ps) / (COUNT(*) * 1e12) AS tpot_s, -- Mean duration without the first event.
  COUNT(*) AS steps -- Events that it covers.
FROM models.ccl_steps
WHERE place > 1
GROUP BY run_id
