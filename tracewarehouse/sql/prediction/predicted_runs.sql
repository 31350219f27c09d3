/*---
inline: true
description: >
  The runs whose times are predicted. Metrics of what only a recording shows leave them out.
---*/
SELECT
  run_id,
  TRUE AS is_predicted -- Always.
FROM main.runs
WHERE origin = 'predicted'
