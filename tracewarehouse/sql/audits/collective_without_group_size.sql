/*---
description: >
  A collective instruction with known replica groups and an unknown group size. Its groups differ in size, or its HLO
  was misread.
---*/
SELECT
  run_id, instruction_id, c.kind,
  COUNT(*) AS executions -- Executions of the instruction.
FROM main.collectives AS c
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
WHERE c.group_size IS NULL AND i.replica_groups IS NOT NULL
GROUP BY run_id, instruction_id, c.kind
