/*---
model: ranks_in_flight
description: >
  How many ranks of collectives are under way on all devices together, and their message bytes: the most in each
  three-hundredth of the time from the first collective to the last. A stretch in which none starts or ends has no row.
---*/
WITH windows AS (
  SELECT run_id, event_id, start_ps, end_ps, COALESCE(message_bytes, 0) AS message_bytes
  FROM main.collectives
  WHERE end_ps > start_ps
),

marks AS (
  SELECT run_id, event_id, start_ps AS at_ps, 1 AS begun, message_bytes FROM windows
  UNION ALL
  SELECT run_id, event_id, end_ps AS at_ps, -1 AS begun, -message_bytes AS message_bytes FROM windows
),

counted AS (
  SELECT run_id, at_ps, SUM(begun) OVER so_far AS ranks, SUM(message_bytes) OVER so_far AS message_bytes
  FROM marks
  WINDOW
    so_far AS (
      PARTITION BY run_id ORDER BY at_ps, begun, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
),

bounds AS (
  SELECT run_id, MIN(start_ps) AS first_ps, (MAX(end_ps) - MIN(start_ps)) // 300 + 1 AS stretch_ps
  FROM windows
  GROUP BY run_id
)

SELECT
  run_id, -- The run.
  (c.at_ps - b.first_ps) // b.stretch_ps * b.stretch_ps AS start_ps, -- Start of the stretch, since the first collective.
  CAST(MAX(c.ranks) AS BIGINT) AS ranks, -- Most ranks of collectives at a time.
  CAST(MAX(c.message_bytes) AS BIGINT) AS message_bytes -- Most message bytes at a time; unknown ones count as 0.
FROM counted AS c
INNER JOIN bounds AS b USING (run_id)
GROUP BY run_id, (c.at_ps - b.first_ps) // b.stretch_ps * b.stretch_ps
