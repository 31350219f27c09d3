/*---
status: compatibility
unit: s
polarity: lower_is_better
grain: [run_id]
value: tpot_s
description: >
  Reproduces CCL-Bench's tpot with its faults, to explain a published number; use tpot instead.
notes: >
  It reads host events named exactly $core.py:331 step, a line number of one version of vLLM. It takes all but the
  first for decode steps, even if they are prefills, and leaves out the last if there are more than two. The value is
  their mean duration without the gaps between. It has no value for training or for an output of one token. In Kineto
  traces the marks are execute_context_ of vLLM or else run_batch of SGLang, and the value is the mean of the ranks.
ccl_bench: tpot
---*/
WITH of_ranks AS (
  SELECT run_id, CAST(FLOOR(SUM(m.duration_ps) / COUNT(*) + 5e-1) AS BIGINT) AS step_ps, COUNT(*) AS steps
  FROM models.ccl_marks AS m
  INNER JOIN models.ccl_card AS c USING (run_id)
  WHERE
    c.phase = 'inference' AND (c.output_length IS NULL OR c.output_length > 1)
    AND m.place > 1 AND (m.places <= 2 OR m.place < m.places)
    AND m.kind = m.server_kind
  GROUP BY run_id, m.host
)

SELECT
  run_id,
  SUM(s.duration_ps) / (COUNT(*) * 1e12) AS tpot_s, -- Mean duration of these events.
  COUNT(*) AS steps -- Events covered.
FROM models.ccl_steps AS s
INNER JOIN models.ccl_card AS c USING (run_id)
WHERE
  c.phase = 'inference' AND (c.output_length IS NULL OR c.output_length > 1)
  AND s.place > 1 AND (s.places <= 2 OR s.place < s.places)
GROUP BY run_id
UNION ALL
SELECT run_id, SUM(step_ps) / (COUNT(*) * 1e12) AS tpot_s, CAST(SUM(steps) AS BIGINT) AS steps
FROM of_ranks
GROUP BY run_id
