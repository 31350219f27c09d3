/*---
description: >
  First start and last end of prefill and decode of a run: on the hosts' clock by markers, on the devices' by leaf ops.
  Steps that start before the first prefill are left out, because the prefill of their requests is not in the capture. A
  mixed step counts as decode, and is counted beside the prefills.
notes: >
  A predicted run holds one decode step. It stands for all that the output length asks for, one after the other, each
  with the time that the host adds.
---*/
WITH device_steps AS (
  SELECT run_id, device_id, step, MIN(first_start_ps) AS start_ps, MAX(last_end_ps) AS end_ps
  FROM models.execution_ops
  WHERE step IS NOT NULL
  GROUP BY run_id, device_id, step
),

bounds AS (
  SELECT run_id, clock, phase, step, start_ps, end_ps, until_ps
  FROM models.steps
  WHERE clock = 'host' AND phase IS NOT NULL
  UNION ALL
  SELECT run_id, s.clock, s.phase, step, o.start_ps, o.end_ps, s.until_ps
  FROM models.steps AS s
  INNER JOIN device_steps AS o USING (run_id, device_id, step)
  WHERE s.clock = 'device' AND s.phase IS NOT NULL
),

placed AS (
  SELECT
    *,
    MIN(CASE WHEN phase = 'prefill' THEN start_ps END) OVER (PARTITION BY run_id, clock) AS request_ps
  FROM bounds
),

bounded AS (
  SELECT
    run_id, clock,
    MIN(start_ps) FILTER (WHERE phase = 'prefill') AS prefill_start_ps,
    MAX(end_ps) FILTER (WHERE phase = 'prefill') AS prefill_end_ps,
    MIN(start_ps) FILTER (WHERE phase IN ('decode', 'mixed')) AS decode_start_ps,
    MAX(end_ps) FILTER (WHERE phase IN ('decode', 'mixed')) AS decode_end_ps,
    MAX(until_ps) FILTER (WHERE phase IN ('decode', 'mixed')) AS decode_until_ps,
    COUNT(DISTINCT step) FILTER (WHERE phase = 'prefill') AS prefill_steps,
    COUNT(DISTINCT step) FILTER (WHERE phase = 'mixed') AS mixed_steps,
    COUNT(DISTINCT step) FILTER (WHERE phase = 'decode') AS decode_steps
  FROM placed
  WHERE request_ps IS NULL OR start_ps >= request_ps
  GROUP BY run_id, clock
),

-- how many decode steps follow the one that stands for them
unrolled AS (
  SELECT b.*, CASE WHEN r.origin = 'predicted' AND b.decode_steps = 1 THEN r.output_length - 2 END AS more_steps
  FROM bounded AS b
  LEFT JOIN main.runs AS r USING (run_id)
)

SELECT
  run_id, clock,
  prefill_start_ps, -- Start of the first prefill step; NULL without.
  prefill_end_ps, -- End of the last prefill step.
  decode_start_ps, -- Start of the first step that decodes; NULL without.
  -- End of the last step that decodes.
  decode_end_ps + COALESCE(more_steps, 0) * (decode_until_ps - decode_start_ps) AS decode_end_ps,
  prefill_steps, -- Number of prefill steps.
  mixed_steps, -- Number of steps that prefill and decode.
  decode_steps + COALESCE(more_steps, 0) AS decode_steps -- Number of decode steps.
FROM unrolled
