/*---
model: ccl_instruction_stats
description: Stats of instructions that exported events have and main.instructions has not, only for the ccl_* metrics.
---*/
SELECT
  run_id, instruction_id,
  -- Name of its events, if that is not the instruction's.
  MAX(string_value) FILTER (WHERE name IN ('display_name', 'event_name')) AS event_name,
  MAX(int_value) FILTER (WHERE name = 'raw_bytes_accessed') AS raw_bytes_accessed -- Memory traffic, uncorrected.
FROM main.instruction_stats
WHERE name IN ('display_name', 'event_name', 'raw_bytes_accessed')
GROUP BY run_id, instruction_id
