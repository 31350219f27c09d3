/*---
audit: step_numbered_twice
description: Two steps of one device, or of one host, with the same number.
columns:
  run_id: The run.
  host: The host.
  device_id: The device; NULL on the host's clock.
  step: The number.
  steps: How many steps have it.
---*/
SELECT
  s.run_id AS run_id,
  s.host AS host,
  s.device_id AS device_id,
  s.step AS step,
  COUNT(*) AS steps
FROM models.steps AS s
GROUP BY s.run_id, s.host, s.device_id, s.step
HAVING COUNT(*) > 1
