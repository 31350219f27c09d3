/*---
audit: collective_without_group_size
description: >
  A collective instruction whose group size is not known, though its replica groups are: its groups differ in size, or
  HLO was read wrongly.
columns:
  run_id: The run.
  instruction_id: The instruction.
  kind: Kind of collective.
  executions: Executions of it.
---*/
SELECT
  c.run_id AS run_id,
  c.instruction_id AS instruction_id,
  c.kind AS kind,
  COUNT(*) AS executions
FROM main.collectives AS c
INNER JOIN main.instructions AS i ON c.run_id = i.run_id AND c.instruction_id = i.instruction_id
WHERE c.group_size IS NULL AND i.replica_groups IS NOT NULL
GROUP BY c.run_id, c.instruction_id, c.kind
