/*---
metric: collective_attribution
version: 1
status: experimental
unit: ratio
polarity: none
grain: [run_id, phase, kind, axis]
value: bound_share
ranges: {bound_share: [0, 1], transfer_share: [0, 1], arrival_share: [0, 1], overlap_share: [0, 1]}
needs: [whole_collectives, lasting_collectives]
description: >
  What the time of collectives goes to. The windows of all ranks divide into overlap, in which the device runs other
  ops, arrival, in which it waits for the last rank, and transfer, the rest. The largest part bounds the collectives.
notes: >
  A faster link shortens transfer, better balance shortens arrival, and overlap costs nothing. Arrival is that of
  sync_wait. Executions with ranks outside the capture are left out.
changed: First version.
---*/
WITH peaks AS (
  SELECT run_id, MIN(peak_ici_gbps) AS peak_gbps
  FROM main.devices
  WHERE peak_ici_gbps > 0
  GROUP BY run_id
),

summed AS (
  SELECT
    run_id, t.phase, t.kind, t.axis,
    CAST(SUM(t.executions) AS BIGINT) AS executions,
    SUM(t.window_ps) AS window_ps,
    SUM(t.overlap_ps) AS overlap_ps,
    SUM(t.wait_ps) AS arrival_ps,
    SUM(t.window_ps - t.overlap_ps - t.wait_ps) AS transfer_ps,
    CAST(SUM(t.wire_bytes) AS BIGINT) AS wire_bytes,
    SUM(t.sending_ps) AS sending_ps,
    MIN(p.peak_gbps) AS peak_gbps
  FROM models.collective_time AS t
  LEFT JOIN peaks AS p USING (run_id)
  GROUP BY run_id, t.phase, t.kind, t.axis
)

SELECT
  run_id, phase, kind, axis,
  GREATEST(transfer_ps, arrival_ps, overlap_ps) / window_ps AS bound_share, -- Share of the windows of the largest part.
  CASE
    WHEN transfer_ps >= arrival_ps AND transfer_ps >= overlap_ps THEN 'transfer'
    WHEN arrival_ps >= overlap_ps THEN 'arrival'
    ELSE 'overlap'
  END AS bound_by, -- That part: transfer, arrival or overlap.
  transfer_ps / window_ps AS transfer_share, -- Share of what is left, which only the transfer explains.
  arrival_ps / window_ps AS arrival_share, -- Share in which ranks wait for the last to arrive.
  overlap_ps / window_ps AS overlap_share, -- Share that other ops hide.
  window_ps / 1e9 AS window_ms, -- Windows of all ranks.
  (window_ps - overlap_ps) / 1e9 AS exposed_ms, -- What other ops do not hide.
  executions,
  -- Bytes that the ranks send over the shortest time of each execution, decimal; NULL where not known. Well below the
  -- links' rate, a transfer is bound by latency.
  wire_bytes * 1e3 / NULLIF(sending_ps, 0) AS wire_gbps,
  wire_bytes * 1e3 / (NULLIF(sending_ps, 0) * peak_gbps) AS link_share -- Share of the links' peak; NULL where not known.
FROM summed
WHERE window_ps > 0
