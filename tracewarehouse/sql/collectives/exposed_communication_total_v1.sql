/*---
metric: exposed_communication_total
version: 1
status: experimental
unit: ms
polarity: lower_is_better
grain: [run_id]
value: exposed_ms
needs: [recorded, collectives]
description: >
  Exposed communication of the whole run on a device: time in which its op line runs a collective, or the start or done of
  one, over all phases, kinds and axes, mean over the devices that communicate. Each moment counts once.
changed: First version.
---*/
WITH exposed AS (
  SELECT run_id, device_id, SUM(exposed_added_ps) AS exposed_communication_ps, COUNT(*) AS executions
  FROM main.collectives
  WHERE exposed_added_ps IS NOT NULL
  GROUP BY run_id, device_id
)

SELECT
  run_id, -- The run.
  SUM(exposed_communication_ps) / (COUNT(*) * 1e9) AS exposed_ms, -- Mean over devices.
  MIN(exposed_communication_ps) / 1e9 AS min_ms, -- Of the device with least.
  MAX(exposed_communication_ps) / 1e9 AS max_ms, -- Of the device with most.
  COUNT(*) AS devices, -- Devices that communicate.
  CAST(SUM(executions) AS BIGINT) AS executions -- Executions on all devices.
FROM exposed
GROUP BY run_id
