/*---
model: communication_ops
description: >
  The op-line events of each collective - the op of a synchronous one, or the start and the done of an asynchronous one. An op
  that computes and in which a collective is fused is none.
---*/
SELECT
  run_id,
  event_id, -- The op, the start or the done.
  kind, axis
FROM main.collectives
WHERE window_source <> 'fused op'
UNION ALL
SELECT run_id, done_event_id AS event_id, kind, axis
FROM main.collectives
WHERE done_event_id IS NOT NULL
