/*---
audit: phase_ends_before_start
description: A phase, step or other interval that ends before it starts.
---*/
SELECT
  run_id,
  device_id, -- The device; NULL for an interval on the host.
  kind, -- Kind of interval.
  name, -- Its name.
  start_ps, -- Its start.
  end_ps -- Its end.
FROM main.phases
WHERE end_ps < start_ps
