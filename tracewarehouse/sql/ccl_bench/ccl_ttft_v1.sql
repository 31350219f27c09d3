/*---
status: compatibility
unit: s
polarity: lower_is_better
grain: [run_id]
value: ttft_s
description: >
  Reproduces CCL-Bench's ttft with its faults, to explain a published number; use ttft instead. It reads host events
  named exactly $core.py:331 step, a line number of one version of vLLM, and takes the duration of the first, whether it
  is a prefill or not. It has no value for training.
notes: >
  In Kineto traces it reads the marks execute_context_ of vLLM or else run_batch of SGLang, and takes the mean of the
  first of each rank.
ccl_bench: ttft
---*/
SELECT
  run_id,
  SUM(s.duration_ps) / (COUNT(*) * 1e12) AS ttft_s, -- Duration of the first event.
  COUNT(*) AS steps -- Events covered, always 1.
FROM models.ccl_steps AS s
INNER JOIN models.ccl_card AS c USING (run_id)
WHERE s.place = 1 AND c.phase = 'inference'
GROUP BY run_id
UNION ALL
SELECT
  run_id,
  SUM(m.duration_ps) / (COUNT(*) * 1e12) AS ttft_s,
  COUNT(*) AS steps
FROM models.ccl_marks AS m
INNER JOIN models.ccl_card AS c USING (run_id)
WHERE
  c.phase = 'inference' AND m.place = 1
  AND m.kind = m.server_kind
GROUP BY run_id
