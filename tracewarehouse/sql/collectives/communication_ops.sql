/*---
description: >
  The op-line events of each collective: the op of a synchronous one, or the start and the done of an asynchronous one.
notes: >
  A collective between slices has two starts and two dones. An op that computes and contains a collective does not
  count.
---*/
SELECT
  run_id,
  event_id, -- The op, a start or a done.
  kind, axis
FROM main.collectives
WHERE window_source <> 'fused op'
UNION ALL
SELECT run_id, done_event_id AS event_id, kind, axis
FROM main.collectives
WHERE done_event_id IS NOT NULL
UNION ALL
SELECT run_id, second_event_id AS event_id, kind, axis
FROM main.collectives
WHERE second_event_id IS NOT NULL
UNION ALL
SELECT run_id, second_done_event_id AS event_id, kind, axis
FROM main.collectives
WHERE second_done_event_id IS NOT NULL
