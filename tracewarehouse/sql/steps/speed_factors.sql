/*---
description: >
  The factors by which a what-if makes links, memory or matrix units faster, and the share of a time that each saves.
---*/
SELECT
  run_id,
  '2' AS factor, -- How many times faster - 2, 4 or infinite.
  2 AS saved_quarters -- 1 - 1 / factor, in quarters.
FROM main.runs
UNION ALL
SELECT run_id, '4' AS factor, 3 AS saved_quarters
FROM main.runs
UNION ALL
SELECT run_id, 'infinite' AS factor, 4 AS saved_quarters
FROM main.runs
