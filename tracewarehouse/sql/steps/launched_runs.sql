/*---
description: >
  Runs in which a device's step is what the host launched under one mark. Such a host may run ahead by several steps, so
  its marks say when steps were launched, and not how long they take.
---*/
SELECT run_id
FROM main.phases
WHERE kind = 'step' AND source = 'launches' AND device_id IS NOT NULL
GROUP BY run_id
