/*---
description: A phase, step or other interval that ends before it starts.
---*/
SELECT
  run_id,
  device_id, -- The device; NULL for an interval on the host.
  kind, -- Kind of interval.
  name, start_ps, end_ps
FROM main.phases
WHERE end_ps < start_ps
