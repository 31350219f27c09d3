/*---
parameters: [run]
reads_runs: [run]
description: The memory in use of each allocator of a run, the most in each of 400 stretches from its first allocation to its last.
---*/
WITH states AS (
  SELECT *
  FROM models.memory_states
  WHERE run_id = run
),

bounds AS (
  SELECT
    MIN(at_ps) AS first_ps,
    (MAX(at_ps) - MIN(at_ps)) // 400 + 1 AS stretch_ps,
    COUNT(DISTINCT host) AS hosts
  FROM states
)

SELECT
  -- The allocator: its name, or else device and its number on the host; the host before it where the run has several.
  CASE WHEN b.hosts > 1 THEN m.host || ' ' ELSE '' END
  || CASE WHEN TRY_CAST(m.allocator AS INTEGER) IS NULL THEN '' ELSE 'device ' END
  || COALESCE(m.allocator, 'unnamed') AS allocator,
  (m.at_ps - b.first_ps) // b.stretch_ps * b.stretch_ps AS at_ps, -- Start of the stretch, since the first allocation.
  MAX(m.used_bytes) AS used_bytes, -- Most bytes in use, allocated and reserved.
  MAX(m.capacity_bytes) AS capacity_bytes, -- Most bytes of the allocator; NULL where not known.
  COUNT(*) AS changes -- Allocations and releases.
FROM states AS m
CROSS JOIN bounds AS b
GROUP BY ALL
