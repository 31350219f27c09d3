/*---
audit: phase_ends_before_start
description: A phase, step or other interval that ends before it starts.
columns:
  run_id: The run.
  device_id: The device; NULL on the host's clock.
  kind: Kind of interval.
  name: Its name.
  start_ps: Its start.
  end_ps: Its end.
---*/
SELECT
  p.run_id AS run_id,
  p.device_id AS device_id,
  p.kind AS kind,
  p.name AS name,
  p.start_ps AS start_ps,
  p.end_ps AS end_ps
FROM main.phases AS p
WHERE p.end_ps < p.start_ps
