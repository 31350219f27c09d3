/*---
metric: ttft
version: 1
status: deprecated
deprecated: >
  Has no row where decode steps of other requests come before the prefill; ttft version 2 leaves those out.
unit: ms
polarity: lower_is_better
grain: [run_id, clock]
value: ttft_ms
requires: SELECT s.run_id FROM models.steps AS s WHERE s.phase = 'prefill'
description: >
  Time to first token. On the host's clock from the start of the prefill marker to its end, when the token is on the
  host; on the devices' clock from the start of the first prefill op to the end of the last one over all devices. Where
  a run has several prefills, those count that begin before its first decode step, such as the chunks of one prompt.
columns:
  run_id: The run.
  clock: host or device.
  ttft_ms: Time to first token.
  prefill_steps: Prefill steps that it spans.
  source: What the steps were read from.
changed: First version.
ccl_bench: ttft
---*/
WITH first_decode AS (
  SELECT
    d.run_id AS run_id,
    d.clock AS clock,
    MIN(d.start_ps) AS start_ps
  FROM models.steps AS d
  WHERE d.phase = 'decode'
  GROUP BY d.run_id, d.clock
),

prefill AS (
  SELECT
    p.run_id AS run_id,
    p.clock AS clock,
    p.device_id AS device_id,
    p.step AS step,
    p.start_ps AS start_ps,
    p.end_ps AS end_ps,
    p.source AS source
  FROM models.steps AS p
  LEFT JOIN first_decode AS f ON p.run_id = f.run_id AND p.clock = f.clock
  WHERE p.phase = 'prefill' AND (f.start_ps IS NULL OR p.start_ps < f.start_ps)
)

SELECT
  h.run_id AS run_id,
  h.clock AS clock,
  CAST(MAX(h.end_ps) - MIN(h.start_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS ttft_ms,
  COUNT(DISTINCT h.step) AS prefill_steps,
  MIN(h.source) AS source
FROM prefill AS h
WHERE h.clock = 'host'
GROUP BY h.run_id, h.clock
UNION ALL
SELECT
  e.run_id AS run_id,
  e.clock AS clock,
  CAST(MAX(b.last_end_ps) - MIN(b.first_start_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS ttft_ms,
  COUNT(DISTINCT e.step) AS prefill_steps,
  MIN(e.source) AS source
FROM prefill AS e
INNER JOIN models.step_ops AS b ON e.run_id = b.run_id AND e.device_id = b.device_id AND e.step = b.step
WHERE e.clock = 'device'
GROUP BY e.run_id, e.clock
