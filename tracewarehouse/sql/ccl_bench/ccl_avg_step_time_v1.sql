/*---
status: compatibility
unit: s
polarity: lower_is_better
grain: [run_id]
value: avg_step_time_s
description: >
  Reproduces CCL-Bench's avg_step_time with its faults, to explain a published number; use step_time instead.
notes: >
  It reads host events named exactly $core.py:331 step, a line number of one version of vLLM. It takes their mean
  duration, prefill and decode alike, without the gaps between. If there are more than two, it leaves out the first
  and the last of the file. A run without such events gets the whole span of the trace over the iterations of the
  card, rounded to microseconds. In Kineto traces it reads the host's marks of PyTorch, or else of vLLM, or else of
  SGLang, and takes the mean of the ranks; it knows neither marks such as execute_32_context_0 nor steps in exports of
  Nsight Systems.
ccl_bench: avg_step_time
---*/
WITH marked AS (
  SELECT run_id, SUM(duration_ps) / (COUNT(*) * 1e12) AS avg_step_time_s, COUNT(*) AS steps
  FROM models.ccl_steps
  WHERE places <= 2 OR (file_place > 1 AND file_place < places)
  GROUP BY run_id
),

of_ranks AS (
  SELECT run_id, CAST(FLOOR(SUM(duration_ps) / COUNT(*) + 5e-1) AS BIGINT) AS step_ps, COUNT(*) AS steps
  FROM models.ccl_marks
  WHERE run_choice = 1 AND (places <= 2 OR (place > 1 AND place < places))
  GROUP BY run_id, host
),

on_gpus AS (
  SELECT run_id, SUM(step_ps) / (COUNT(*) * 1e12) AS avg_step_time_s, SUM(steps) AS steps
  FROM of_ranks
  GROUP BY run_id
),

events AS (
  SELECT run_id, start_ps, start_ps + duration_ps AS end_ps
  FROM main.ops
  UNION ALL
  SELECT run_id, start_ps, start_ps + duration_ps AS end_ps
  FROM main.host_events
),

spans AS (
  SELECT run_id, MAX(e.end_ps) - MIN(e.start_ps) AS span_ps
  FROM events AS e
  LEFT JOIN main.runs AS r USING (run_id)
  WHERE r.format IS NULL OR r.format NOT IN ('kineto', 'nsys')
  GROUP BY run_id
)

SELECT
  run_id,
  -- Mean duration, or the share of an iteration in the span.
  COALESCE(m.avg_step_time_s, ROUND(s.span_ps / (c.iterations * 1e12), 6)) AS avg_step_time_s,
  COALESCE(m.steps, c.iterations) AS steps, -- Events that it covers, or iterations.
  m.run_id IS NOT NULL AS has_marks -- It is read from events and not from the span.
FROM spans AS s
LEFT JOIN marked AS m USING (run_id)
LEFT JOIN models.ccl_card AS c USING (run_id)
WHERE m.run_id IS NOT NULL OR (c.iterations > 0 AND s.span_ps > 0)
UNION ALL
SELECT run_id, avg_step_time_s, CAST(steps AS BIGINT) AS steps, TRUE AS has_marks
FROM on_gpus
