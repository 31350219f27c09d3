/*---
model: collective_time
description: >
  What the time of collectives on each device consists of, by kind and axis - the transfer, which is the shortest time
  over the ranks of an execution, waiting for late ranks, and the rest of the window of an asynchronous one, in which the
  device does something else; the three add up to the windows. Executions with ranks outside the capture are left out,
  since their transfer is not known.
---*/
WITH timed AS (
  SELECT
    run_id,
    c.device_id,
    c.phase,
    c.kind,
    c.axis,
    c.end_ps - c.start_ps AS window_ps,
    i.transfer_ps,
    CASE
      WHEN c.is_async THEN LEAST(c.end_ps - c.start_ps - i.transfer_ps, c.exposed_ps)
      ELSE c.end_ps - c.start_ps - i.transfer_ps
    END AS wait_ps,
    c.exposed_added_ps
  FROM main.collectives AS c
  INNER JOIN models.collective_instances AS i USING (run_id, instance)
  WHERE NOT i.is_partial
)

SELECT
  run_id, -- The run.
  device_id, -- The device.
  phase, -- Phase; NULL in a step without one, outside before the first and after the last.
  kind, -- Kind of collective.
  axis, -- Mesh axes of its groups.
  COUNT(*) AS executions, -- Executions on the device.
  CAST(SUM(window_ps) AS BIGINT) AS window_ps, -- Time from their starts to their ends.
  CAST(SUM(transfer_ps) AS BIGINT) AS transfer_ps, -- Shortest times over the ranks.
  CAST(SUM(wait_ps) AS BIGINT) AS wait_ps, -- Time beyond it, of an asynchronous one at most its exposed time.
  CAST(SUM(window_ps - transfer_ps - wait_ps) AS BIGINT) AS rest_ps, -- What is left of the windows.
  -- Time in which the op line runs them, or their starts and dones, and so computes nothing.
  CAST(SUM(exposed_added_ps) AS BIGINT) AS exposed_ps
FROM timed
GROUP BY run_id, device_id, phase, kind, axis
