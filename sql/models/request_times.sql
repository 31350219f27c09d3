/*---
model: request_times
description: >
  First start and last end of prefill and decode of a run, on the hosts' clock by markers, on the devices' by leaf ops.
  Decode steps that start before the first prefill are of requests whose own is not in the capture, and left out.
columns:
  run_id: The run.
  clock: host or device.
  prefill_start_ps: Start of the first prefill step; NULL without.
  prefill_end_ps: End of the last prefill step.
  decode_start_ps: Start of the first decode step; NULL without.
  decode_end_ps: End of the last decode step.
  prefill_steps: Number of prefill steps.
  decode_steps: Number of decode steps.
---*/
WITH bounds AS (
  SELECT
    h.run_id AS run_id,
    h.clock AS clock,
    h.phase AS phase,
    h.step AS step,
    h.start_ps AS start_ps,
    h.end_ps AS end_ps
  FROM models.steps AS h
  WHERE h.clock = 'host' AND h.phase IS NOT NULL
  UNION ALL
  SELECT
    d.run_id AS run_id,
    d.clock AS clock,
    d.phase AS phase,
    d.step AS step,
    o.first_start_ps AS start_ps,
    o.last_end_ps AS end_ps
  FROM models.steps AS d
  INNER JOIN models.step_ops AS o ON d.run_id = o.run_id AND d.device_id = o.device_id AND d.step = o.step
  WHERE d.clock = 'device' AND d.phase IS NOT NULL
),

placed AS (
  SELECT
    p.run_id AS run_id,
    p.clock AS clock,
    p.phase AS phase,
    p.step AS step,
    p.start_ps AS start_ps,
    p.end_ps AS end_ps,
    MIN(CASE WHEN p.phase = 'prefill' THEN p.start_ps ELSE NULL END) OVER (PARTITION BY p.run_id, p.clock) AS request_ps
  FROM bounds AS p
)

SELECT
  b.run_id AS run_id,
  b.clock AS clock,
  MIN(CASE WHEN b.phase = 'prefill' THEN b.start_ps ELSE NULL END) AS prefill_start_ps,
  MAX(CASE WHEN b.phase = 'prefill' THEN b.end_ps ELSE NULL END) AS prefill_end_ps,
  MIN(CASE WHEN b.phase = 'decode' THEN b.start_ps ELSE NULL END) AS decode_start_ps,
  MAX(CASE WHEN b.phase = 'decode' THEN b.end_ps ELSE NULL END) AS decode_end_ps,
  COUNT(DISTINCT CASE WHEN b.phase = 'prefill' THEN b.step ELSE NULL END) AS prefill_steps,
  COUNT(DISTINCT CASE WHEN b.phase = 'decode' THEN b.step ELSE NULL END) AS decode_steps
FROM placed AS b
WHERE b.request_ps IS NULL OR b.start_ps >= b.request_ps
GROUP BY b.run_id, b.clock
