/*---
description: >
  Transfer and waiting of each rank of a collective, in runs that have times. The shortest time over the ranks is the
  transfer time, because the rank that arrives last waits for nobody. The rest of a rank's time is waiting, at most
  exposed_added_ps, and in an asynchronous collective at most exposed_done_ps.
notes: >
  A device that computes beside the collective does not wait, and one that is in several collectives waits in one of
  them.
---*/
WITH timed AS (
  SELECT
    run_id, event_id, instance, device_id, kind, axis, link, phase, step, group_size, is_async,
    message_bytes, wire_bytes, start_ps, end_ps, exposed_added_ps, hidden_ps,
    COALESCE(exposed_done_ps, exposed_added_ps) AS waitable_ps,
    window_source = 'fused op' AS is_fused,
    MIN(CASE WHEN window_source <> 'fused op' THEN end_ps - start_ps END)
      OVER (PARTITION BY run_id, instance) AS transfer_ps,
    COUNT(*) OVER (PARTITION BY run_id, instance) AS ranks,
    MAX(CASE WHEN is_partial THEN 1 ELSE 0 END) OVER (PARTITION BY run_id, instance) = 1 AS is_partial
  FROM main.collectives
  WHERE instance IS NOT NULL AND start_ps IS NOT NULL
)

SELECT
  run_id,
  event_id, -- The op, or the start of an asynchronous one.
  instance, device_id, kind, axis,
  link, -- dcn between slices, else NULL.
  phase, step, group_size,
  is_async, -- Split into a start and a done.
  message_bytes, -- Message of the rank.
  wire_bytes, -- Bytes that it sends.
  start_ps, -- Start.
  end_ps, -- End, exclusive.
  exposed_added_ps, -- Time in which the op line runs it while no earlier collective runs.
  ranks, -- Ranks of the execution that are in the capture.
  is_partial, -- Ranks are missing from the capture, so transfer_ps covers only the ranks at hand.
  end_ps - start_ps AS window_ps, -- Time from its start to its end.
  is_fused, -- Part of an op that computes, so that its own time is not known.
  transfer_ps, -- Shortest time over the ranks; NULL if it is fused.
  LEAST(end_ps - start_ps - transfer_ps, waitable_ps) AS wait_ps, -- Time that the rank waits for later ones.
  hidden_ps AS overlap_ps -- Time in which the device runs ops beside it that do not communicate.
FROM timed
