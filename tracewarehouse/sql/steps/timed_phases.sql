/*---
description: The times of models.timed_spans, summed by phase and device.
---*/
SELECT
  run_id, device_id, phase,
  NULLIF(COUNT(step), 0) AS steps, -- Steps of the phase on the device that count; NULL without steps.
  CAST(SUM(span_ps) AS BIGINT) AS span_ps, -- Their time.
  CAST(SUM(busy_ps) AS BIGINT) AS busy_ps, -- Union of their leaf ops.
  -- The time is that of a last step, without the wait after it, so it is a lower bound.
  COUNT(*) FILTER (WHERE is_last) > 0 AS is_last
FROM models.timed_spans
GROUP BY run_id, device_id, phase
HAVING SUM(span_ps) > 0
