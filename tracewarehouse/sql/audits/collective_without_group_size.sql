/*---
description: >
  A collective instruction whose group size is not known although its replica groups are: its groups differ in size, or
  its HLO was misread.
---*/
SELECT
  run_id, instruction_id, c.kind,
  COUNT(*) AS executions -- Executions of the instruction.
FROM main.collectives AS c
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
WHERE c.group_size IS NULL AND i.replica_groups IS NOT NULL
GROUP BY run_id, instruction_id, c.kind
