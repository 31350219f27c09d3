/*---
description: >
  A synchronous collective whose ranks do not overlap in time in some execution. Its groups name the wrong devices, or
  executions of several devices are joined wrongly.
---*/
SELECT
  run_id, instruction_id, kind,
  pairs, -- Pairs of ranks that were compared.
  pairs - overlapping AS pairs_apart, -- Those that do not overlap in time.
  first_apart AS instance -- First execution with such ranks.
FROM models.rank_overlap
WHERE overlapping < pairs
