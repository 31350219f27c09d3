/*---
parameters:
  run: The run, by its id.
  from_ps: Only collectives that start then or later; NULL for all.
  until_ps: Only collectives that start before; NULL for all.
  only_phase: Only this phase; NULL for all.
  first_step: Only this step and later ones; NULL for all.
  last_step: Only this step and earlier ones; NULL for all.
reads_runs: [run]
description: >
  How many collectives of a run are in flight after each moment at which the number changes. The ranks of one execution
  count once, from the first start to the last end; bytes count from start to end on each rank.
---*/
WITH ranks AS (
  SELECT COALESCE(instance, -1 - event_id) AS instance, start_ps, end_ps, COALESCE(wire_bytes, 0) AS bytes
  FROM macros.selected_collectives(run, from_ps, until_ps, only_phase, first_step, last_step)
),

changes AS (
  SELECT MIN(start_ps) AS at_ps, 1 AS collectives, 0 AS bytes
  FROM ranks
  GROUP BY instance
  UNION ALL
  SELECT MAX(end_ps) AS at_ps, -1 AS collectives, 0 AS bytes
  FROM ranks
  GROUP BY instance
  UNION ALL
  SELECT start_ps AS at_ps, 0 AS collectives, bytes
  FROM ranks
  UNION ALL
  SELECT end_ps AS at_ps, 0 AS collectives, -bytes AS bytes
  FROM ranks
),

moments AS (
  SELECT at_ps, SUM(collectives) AS collectives, SUM(bytes) AS bytes
  FROM changes
  GROUP BY at_ps
)

SELECT
  at_ps, -- The moment.
  CAST(SUM(collectives) OVER (ORDER BY at_ps) AS BIGINT) AS collectives, -- Collectives in flight from then on.
  CAST(SUM(bytes) OVER (ORDER BY at_ps) AS BIGINT) AS bytes -- Bytes that their ranks send.
FROM moments
