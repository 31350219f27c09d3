/*---
inline: true
description: The collectives of each device in the steps of models.timed_spans.
---*/
SELECT
  c.run_id,
  c.event_id, -- The op, or the start of an asynchronous one.
  c.device_id,
  c.instance, -- The execution that the ranks share; NULL if unknown.
  c.phase, c.kind, c.axis,
  c.link, -- dcn between slices, else NULL.
  c.message_bytes, -- Message of the rank; NULL if unknown.
  c.wire_bytes, -- Bytes that it sends; NULL if unknown.
  c.exposed_added_ps -- Time in which the op line runs it while no earlier collective runs.
FROM main.collectives AS c
INNER JOIN models.timed_spans AS s
  ON
    c.run_id = s.run_id AND c.device_id = s.device_id AND c.phase IS NOT DISTINCT FROM s.phase
    AND c.step IS NOT DISTINCT FROM s.step
