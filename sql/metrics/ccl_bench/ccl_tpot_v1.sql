/*---
metric: ccl_tpot
version: 1
status: compatibility
unit: s
polarity: lower_is_better
grain: [run_id]
value: tpot_s
description: >
  Reproduces CCL-Bench's tpot with its faults, to explain a published number; use tpot instead. It reads host events
  named exactly $core.py:331 step, a line number of one version of vLLM, and takes the mean duration of all but the
  first and, where there are more than two, the last as decode steps, prefills among them, without the gaps between. Not
  for training, nor for an output of one token.
changed: First version.
ccl_bench: tpot
---*/
SELECT
  run_id, -- The run.
  SUM(s.duration_ps) / (COUNT(*) * 1e12) AS tpot_s, -- Mean duration of these events.
  COUNT(*) AS steps -- Events that it covers.
FROM models.ccl_steps AS s
INNER JOIN models.ccl_card AS c USING (run_id)
WHERE
  c.phase = 'inference' AND (c.output_length IS NULL OR c.output_length > 1)
  AND s.place > 1 AND (s.places <= 2 OR s.place < s.places)
GROUP BY run_id
