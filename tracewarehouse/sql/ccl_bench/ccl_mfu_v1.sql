/*---
status: compatibility
unit: "%"
polarity: higher_is_better
grain: [run_id]
value: mfu_percent
description: >
  Reproduces CCL-Bench's mfu with its faults, to explain a published number; use mfu instead.
notes: >
  It divides the operations of all events that state some by the union of these events' intervals over all devices,
  and by 918e12 for every chip of the run. Idle time does not count. A while loop counts with its body, and
  all-reduces count. The only TPU that it knows is the v6e. The result is rounded to four decimals. For Kineto traces
  it computes the operations of the prompt's tokens from the card, three times as many in training, and divides them by
  the mean duration of PyTorch's marks on the host; it knows the peaks of A100 and H100.
ccl_bench: mfu
---*/
WITH timed AS (
  SELECT
    run_id, model_flops, start_ps,
    start_ps + GREATEST(duration_ps, 0) AS end_ps,
    MAX(start_ps + GREATEST(duration_ps, 0)) OVER (
      PARTITION BY run_id ORDER BY start_ps, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS covered_until_ps
  FROM models.ccl_events
  WHERE model_flops > 0
),

summed AS (
  SELECT
    run_id,
    SUM(model_flops) AS model_flops,
    SUM(GREATEST(end_ps - GREATEST(start_ps, COALESCE(covered_until_ps, start_ps)), 0)) AS active_ps
  FROM timed
  GROUP BY run_id
),

of_ranks AS (
  SELECT run_id, CAST(FLOOR(SUM(duration_ps) / COUNT(*) + 5e-1) AS BIGINT) AS step_ps
  FROM models.ccl_marks
  WHERE kind = 'profiler step' AND (places <= 2 OR (place > 1 AND place < places))
  GROUP BY run_id, host
),

on_gpus AS (
  SELECT run_id, SUM(step_ps) / (COUNT(*) * 1e12) AS step_s
  FROM of_ranks
  GROUP BY run_id
)

SELECT
  run_id,
  -- Utilization in percent.
  ROUND(s.model_flops * 1e2 / (CAST(s.active_ps AS DOUBLE) * (918 * c.chips)), 4) AS mfu_percent
FROM summed AS s
INNER JOIN models.ccl_card AS c USING (run_id)
WHERE s.active_ps > 0 AND c.chips > 0 AND c.hardware = 'tpu_v6e'
UNION ALL
SELECT
  run_id,
  ROUND(
    CASE WHEN c.stated_phase = 'inference' THEN 1 ELSE 3 END
    * (2 * CAST(c.parameters AS DOUBLE) + 4 * CAST(c.attention_parameters AS DOUBLE)) * c.tokens
    / (g.step_s * CASE WHEN c.hardware = 'nvidia_a100' THEN 312e12 ELSE 989e12 END * c.gpus) * 1e2,
    4
  ) AS mfu_percent
FROM on_gpus AS g
INNER JOIN models.ccl_card AS c USING (run_id)
WHERE g.step_s > 0 AND c.hardware IN ('nvidia_a100', 'nvidia_h100') AND c.attention_parameters IS NOT NULL
