/*---
model: ccl_kernels
description: >
  The kernels of GPUs as CCL-Bench reads them from a Kineto trace or an export of Nsight Systems, only for the ccl_*
  metrics. Copies and sets by the driver are none.
---*/
SELECT
  run_id,
  r.format = 'nsys' AS is_nsys, -- From an export of Nsight Systems, of which CCL-Bench reads no steps.
  o.host, -- The file, which in a Kineto trace is one rank.
  o.device_id, -- The device.
  o.event_id, -- The event.
  o.instruction_id, -- Its instruction, which holds what it says of a collective.
  i.name, -- Name of the kernel.
  LOWER(i.name) AS lower_name, -- The same in lower case.
  o.start_ps, -- Start since the run's profile start.
  o.start_ps + o.duration_ps AS end_ps, -- End.
  o.duration_ps -- Duration.
FROM main.runs AS r
INNER JOIN main.ops AS o USING (run_id)
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
WHERE r.format IN ('kineto', 'nsys') AND o.line LIKE 'Stream #%' AND NOT REGEXP_MATCHES(i.name, '^Mem(cpy|set)')
