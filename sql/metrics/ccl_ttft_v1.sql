/*---
metric: ccl_ttft
version: 1
status: deprecated
unit: s
polarity: lower_is_better
grain: [run_id]
value: ttft_s
requires: SELECT h.run_id FROM main.host_events AS h WHERE h.name = '$core.py:331 step'
description: >
  Reproduces CCL-Bench's ttft with its faults, to explain a published number; use ttft instead. It reads host events
  named exactly $core.py:331 step, a line number of one version of vLLM, and takes the duration of the first, whether it
  is a prefill or not.
columns:
  run_id: The run.
  ttft_s: Duration of the first event.
  steps: Events that it covers, 1.
changed: First version.
deprecated: Only explains numbers that CCL-Bench published; use ttft instead.
ccl_bench: ttft
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
  CAST(SUM(r.duration_ps) AS DOUBLE) / CAST(COUNT(*) * 1000000000000 AS DOUBLE) AS ttft_s,
  COUNT(*) AS steps
FROM ranked AS r
WHERE r.place = 1
GROUP BY r.run_id
