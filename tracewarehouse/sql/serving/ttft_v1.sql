/*---
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, clock]
value: ttft_ms
needs: [prefill]
description: >
  Time to first token. On the host's clock, it is the time from the start of the prefill marker to its end, when the
  token is on the host. On the devices' clock, it is the time from the first prefill op to the end of the last one on any
  device.
notes: >
  Ops before the next step belong to the prefill, so sampling by a separate program counts. A prompt may have several
  prefills, such as its chunks: all before the first step that decodes count. A mixed step, which prefills for one
  request and decodes for another, is no prefill here.
ccl_bench: ttft
---*/
WITH first_prefill AS (
  SELECT run_id, clock, MIN(start_ps) AS start_ps
  FROM models.steps
  WHERE phase = 'prefill'
  GROUP BY run_id, clock
),

first_decode AS (
  SELECT run_id, clock, MIN(d.start_ps) AS start_ps
  FROM models.steps AS d
  INNER JOIN first_prefill AS r USING (run_id, clock)
  WHERE d.phase IN ('decode', 'mixed') AND d.start_ps >= r.start_ps
  GROUP BY run_id, clock
),

prefill AS (
  SELECT run_id, clock, p.device_id, p.step, p.start_ps, p.end_ps, p.source
  FROM models.steps AS p
  LEFT JOIN first_decode AS f USING (run_id, clock)
  WHERE p.phase = 'prefill' AND (f.start_ps IS NULL OR p.start_ps < f.start_ps)
)

SELECT
  run_id, clock,
  (MAX(end_ps) - MIN(start_ps)) / 1e9 AS ttft_ms, -- Time to first token.
  COUNT(DISTINCT step) AS prefill_steps, -- Prefill steps in that time.
  MIN(source) AS source -- Where the steps come from.
FROM prefill
WHERE clock = 'host'
GROUP BY run_id, clock
UNION ALL
SELECT
  run_id, e.clock,
  (MAX(b.last_end_ps) - MIN(b.first_start_ps)) / 1e9 AS ttft_ms,
  COUNT(DISTINCT step) AS prefill_steps,
  MIN(e.source) AS source
FROM prefill AS e
INNER JOIN models.execution_ops AS b USING (run_id, device_id, step)
WHERE e.clock = 'device'
GROUP BY run_id, e.clock
