/*---
model: collective_arrivals
description: >
  The rank that each execution of a collective waits for: the one that starts last, of several the lowest device. How
  long the others waited for it is the time that all ranks wait, and how far it was behind the rank before it is what
  would be gained if it alone were on time.
---*/
WITH ranks AS (
  SELECT
    run_id, instance, c.device_id, i.phase, i.axis, i.is_partial, i.first_start_ps, i.wait_ps, c.start_ps,
    LAG(c.start_ps) OVER (PARTITION BY run_id, instance ORDER BY c.start_ps, c.device_id DESC) AS previous_start_ps,
    ROW_NUMBER() OVER (PARTITION BY run_id, instance ORDER BY c.start_ps DESC, c.device_id) AS place
  FROM main.collectives AS c
  INNER JOIN models.collective_instances AS i USING (run_id, instance)
  WHERE i.ranks > 1
)

SELECT
  run_id, instance, device_id, phase, axis,
  is_partial, -- Ranks are missing from the capture, which may be later.
  place = 1 AS is_last, -- It is the rank that the others wait for.
  start_ps - first_start_ps AS lateness_ps, -- Its start minus that of the first rank.
  -- Of the last rank, its start minus that of the rank before it; NULL of the others.
  CASE WHEN place = 1 THEN start_ps - previous_start_ps END AS lead_ps,
  -- Of the last rank, the time that all ranks wait; NULL of the others.
  CASE WHEN place = 1 THEN wait_ps END AS caused_wait_ps
FROM ranks
