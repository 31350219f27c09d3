/*---
description: >
  Transfer, waiting for late ranks, and the rest of the windows of the collectives on each device, by kind and axis. The
  three add up to the windows.
notes: >
  Transfer is the shortest time over the ranks of an execution. In the rest the device does something else, such as
  another collective. Executions with ranks outside the capture are left out, since their transfer is not known.
---*/
SELECT
  run_id, device_id, phase, kind, axis,
  COUNT(*) AS executions, -- Executions on the device.
  CAST(SUM(window_ps) AS BIGINT) AS window_ps, -- Time from their starts to their ends.
  CAST(SUM(transfer_ps) AS BIGINT) AS transfer_ps, -- Shortest times over the ranks.
  CAST(SUM(wait_ps) AS BIGINT) AS wait_ps, -- Time that the device waits for later ranks.
  CAST(SUM(window_ps - transfer_ps - wait_ps) AS BIGINT) AS rest_ps, -- The rest of the windows.
  CAST(SUM(overlap_ps) AS BIGINT) AS overlap_ps, -- Time of the windows in which the device runs other ops.
  -- Time in which the op line runs them, or their starts and dones, and so computes nothing.
  CAST(SUM(exposed_added_ps) AS BIGINT) AS exposed_ps,
  -- Bytes sent by the executions whose bytes are known; NULL without any.
  CAST(SUM(wire_bytes) AS BIGINT) AS wire_bytes,
  -- Transfer time of these executions; NULL without any.
  CAST(SUM(transfer_ps) FILTER (WHERE wire_bytes IS NOT NULL) AS BIGINT) AS sending_ps
FROM models.collective_ranks
WHERE NOT is_partial AND NOT is_fused
GROUP BY run_id, device_id, phase, kind, axis
