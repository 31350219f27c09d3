/*---
status: experimental
unit: ratio
polarity: none
grain: [run_id, phase, kind, axis]
value: bound_share
ranges: {bound_share: [0, 1], transfer_share: [0, 1], arrival_share: [0, 1], overlap_share: [0, 1]}
needs: [recorded, attributed_collectives, lasting_collectives]
description: >
  Where the time of collectives goes. In overlap the device runs other ops, in arrival it waits for the last rank, and
  the rest is transfer. The largest part bounds the collectives.
notes: >
  Faster links shorten transfer. Better balance shortens arrival. Overlap costs no time. Arrival is that of sync_wait.
  Executions with ranks outside the capture are left out. Between slices the ranks are not known, so transfer and
  arrival are one part. A collective inside an op that computes is all overlap.
---*/
WITH known AS (
  SELECT
    run_id, r.phase, r.kind, r.axis, r.window_ps, r.overlap_ps, r.wait_ps, r.wire_bytes,
    CASE WHEN r.wire_bytes IS NOT NULL THEN r.transfer_ps END AS sending_ps,
    NULLIF(p.peak_gbps, 0) AS peak_gbps
  FROM models.collective_ranks AS r
  LEFT JOIN models.collective_links AS p USING (run_id, kind, axis)
  WHERE NOT r.is_partial AND NOT r.is_fused
  UNION ALL
  SELECT
    run_id, phase, kind, axis, window_ps, overlap_ps,
    CASE WHEN is_fused THEN 0 END AS wait_ps,
    CASE WHEN NOT is_fused THEN wire_bytes END AS wire_bytes,
    CASE WHEN wire_bytes IS NOT NULL AND NOT is_fused THEN window_ps END AS sending_ps,
    NULL AS peak_gbps
  FROM models.collective_ranks
  WHERE link = 'dcn' OR (is_fused AND NOT is_partial)
),

summed AS (
  SELECT
    run_id, phase, kind, axis,
    COUNT(*) AS executions,
    SUM(window_ps) AS window_ps,
    SUM(overlap_ps) AS overlap_ps,
    SUM(wait_ps) AS arrival_ps,
    SUM(window_ps - overlap_ps - COALESCE(wait_ps, 0)) AS transfer_ps,
    CAST(SUM(wire_bytes) AS BIGINT) AS wire_bytes,
    SUM(sending_ps) AS sending_ps,
    MIN(peak_gbps) AS peak_gbps
  FROM known
  GROUP BY run_id, phase, kind, axis
),

recorded AS (
  SELECT s.*
  FROM summed AS s
  LEFT JOIN models.predicted_runs AS g ON s.run_id = g.run_id
  WHERE s.window_ps > 0 AND g.is_predicted IS NULL
)

SELECT
  run_id, phase, kind, axis,
  -- Share of the windows that the largest part takes.
  GREATEST(transfer_ps, COALESCE(arrival_ps, 0), overlap_ps) / window_ps AS bound_share,
  CASE
    WHEN arrival_ps IS NULL AND transfer_ps >= overlap_ps THEN 'transfer or arrival'
    WHEN transfer_ps >= arrival_ps AND transfer_ps >= overlap_ps THEN 'transfer'
    WHEN arrival_ps >= overlap_ps THEN 'arrival'
    ELSE 'overlap'
  END AS bound_by, -- That part: transfer, arrival or overlap; between slices, transfer or arrival together, or overlap.
  transfer_ps / window_ps AS transfer_share, -- Share of the transfer: the windows without overlap and arrival.
  -- Share in which ranks wait for the last to arrive; NULL between slices, where transfer_share holds it.
  arrival_ps / window_ps AS arrival_share,
  overlap_ps / window_ps AS overlap_share, -- Share that other ops hide.
  window_ps / 1e9 AS window_ms, -- Windows of all ranks.
  (window_ps - overlap_ps) / 1e9 AS exposed_ms, -- Part of the windows that no other op hides.
  executions,
  -- Bytes that the ranks send over the shortest time of each execution, decimal; NULL where not known. Well below the
  -- links' rate, a transfer is bound by latency.
  wire_bytes * 1e3 / NULLIF(sending_ps, 0) AS wire_gbps,
  wire_bytes * 1e3 / (NULLIF(sending_ps, 0) * peak_gbps) AS link_share -- Share of the links' peak; NULL where not known.
FROM recorded
