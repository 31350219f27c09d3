/*---
description: Two steps of one device, or of one host, with the same number.
---*/
SELECT
  run_id, host,
  device_id, -- The device; NULL for an interval on the host.
  step, -- The number.
  COUNT(*) AS steps -- How many steps have it.
FROM models.steps
GROUP BY run_id, host, device_id, step
HAVING COUNT(*) > 1
