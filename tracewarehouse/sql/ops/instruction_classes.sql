/*---
model: instruction_classes
description: The class of each instruction by which charts colour its ops - its op_class, with communication and compute divided.
---*/
SELECT
  run_id, -- The run.
  instruction_id, -- The HLO instruction.
  -- The kind of collective, other collective, copy, matrix (a product or a fusion around one), fusion, or other.
  CASE
    WHEN
      op_class = 'communication'
      AND collective IN ('all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all', 'collective-permute')
      THEN collective
    WHEN op_class = 'communication' THEN 'other collective'
    WHEN op_class = 'copy' THEN 'copy'
    WHEN opcode IN ('dot', 'convolution') OR category LIKE 'convolution%' THEN 'matrix'
    WHEN opcode = 'fusion' THEN 'fusion'
    ELSE 'other'
  END AS class
FROM main.instructions
