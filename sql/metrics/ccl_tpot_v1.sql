/*---
metric: ccl_tpot
version: 1
status: deprecated
unit: s
polarity: lower_is_better
grain: [run_id]
value: tpot_s
requires: SELECT h.run_id FROM main.host_events AS h WHERE h.name = '$core.py:331 step'
description: >
  Reproduces CCL-Bench's tpot with its faults, to explain a published number; use tpot instead. It reads host events
  named exactly $core.py:331 step, a line number of one version of vLLM, and takes the mean duration of all but the
  first as decode steps, prefills among them, without the gaps between.
columns:
  run_id: The run.
  tpot_s: Mean duration without the first event.
  steps: Events that it covers.
changed: First version.
deprecated: Only explains numbers that CCL-Bench published; use tpot instead.
ccl_bench: tpot
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
  CAST(SUM(r.duration_ps) AS DOUBLE) / CAST(COUNT(*) * 1000000000000 AS DOUBLE) AS tpot_s,
  COUNT(*) AS steps
FROM ranked AS r
WHERE r.place > 1
GROUP BY r.run_id
