/*---
metric: ccl_avg_step_time
version: 1
status: deprecated
unit: s
polarity: lower_is_better
grain: [run_id]
value: avg_step_time_s
requires: SELECT h.run_id FROM main.host_events AS h WHERE h.name = '$core.py:331 step'
description: >
  Reproduces CCL-Bench's avg_step_time with its faults, to explain a published number; use step_time instead. It reads
  host events named exactly $core.py:331 step, a line number of one version of vLLM: mean duration without the first and
  the last, prefill and decode alike, without the gaps between. Its fallback, span over the iterations of the card, is
  not reproduced.
columns:
  run_id: The run.
  avg_step_time_s: Mean duration.
  steps: Events that it covers.
changed: First version.
deprecated: Only explains numbers that CCL-Bench published; use step_time instead.
ccl_bench: avg_step_time
---*/
WITH ranked AS (
  SELECT
    h.run_id AS run_id,
    h.duration_ps AS duration_ps,
    ROW_NUMBER() OVER (PARTITION BY h.run_id ORDER BY h.start_ps, h.event_id) AS place,
    COUNT(*) OVER (PARTITION BY h.run_id) AS places
  FROM main.host_events AS h
  WHERE h.name = '$core.py:331 step'
)

SELECT
  r.run_id AS run_id,
  CAST(SUM(r.duration_ps) AS DOUBLE) / CAST(COUNT(*) * 1000000000000 AS DOUBLE) AS avg_step_time_s,
  COUNT(*) AS steps
FROM ranked AS r
WHERE r.place > 1 AND r.place < r.places
GROUP BY r.run_id
