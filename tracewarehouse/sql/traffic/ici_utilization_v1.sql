/*---
status: stable
unit: ratio
polarity: higher_is_better
grain: [run_id, phase, kind, axis]
value: utilization
needs: [inter_chip_links, link_peak, sent_bytes]
description: >
  Share of the peak inter-chip bandwidth that collectives reach. It is the bytes that a device sends, divided by the
  transfer time (the shortest over the ranks) and by the device's peak over all links in one direction.
notes: >
  A row divides the sum of its bytes by the sum of its time. Ranks that send nothing, such as the target of a pair,
  are left out. Executions with ranks outside the capture count only in a row that has no others, with the bytes that
  the algorithm of their kind sends. Their transfer took at most the shortest time at hand, so the share is a lower
  bound. The window of an asynchronous collective may outlast its transfer, so its share is a lower bound too.
---*/
WITH sent AS (
  SELECT
    run_id, c.phase, c.kind, c.axis, c.is_async, i.is_partial, i.transfer_ps, c.link,
    CASE WHEN c.link = 'die' THEN d.peak_die_gbps ELSE d.peak_ici_gbps END AS peak_gbps,
    CASE WHEN i.is_partial THEN COALESCE(c.wire_bytes, i.bus_bytes) ELSE c.wire_bytes END AS wire_bytes
  FROM main.collectives AS c
  INNER JOIN models.collective_instances AS i USING (run_id, instance)
  INNER JOIN main.devices AS d USING (run_id, device_id)
  WHERE c.link IS DISTINCT FROM 'dcn'
),

chosen AS (
  SELECT run_id, phase, kind, axis, link, is_async, is_partial, transfer_ps, peak_gbps, wire_bytes
  FROM sent
  WHERE wire_bytes > 0 AND peak_gbps > 0 AND transfer_ps IS NOT NULL
  QUALIFY is_partial = MIN(is_partial) OVER (PARTITION BY run_id, phase, kind, axis) -- whole executions, if there are any
)

SELECT
  run_id, phase, kind, axis,
  SUM(wire_bytes) * 1000 / SUM(transfer_ps) / MIN(peak_gbps) AS utilization, -- Share of the peak.
  CASE WHEN COUNT(*) FILTER (WHERE is_partial) > 0 THEN 'lower' END AS bound,
  SUM(wire_bytes) * 1000 / SUM(transfer_ps) AS sent_gbps, -- Bytes sent over transfer time.
  MIN(peak_gbps) AS peak_gbps, -- Peak of a device; the smallest if devices differ.
  -- Class of the links: ici, or die for devices of one chip, with the peak of the die; mixed for both.
  CASE
    WHEN COUNT(*) = COUNT(link) AND MIN(link) = MAX(link) THEN MIN(link)
    WHEN COUNT(link) > 0 THEN 'mixed'
  END AS link,
  CAST(SUM(wire_bytes) AS BIGINT) AS wire_bytes, -- Bytes that all devices send.
  COUNT(*) AS executions, -- Executions covered, counted on every device that sends.
  COUNT(*) FILTER (WHERE is_async) AS async_executions -- Asynchronous ones among them.
FROM chosen
GROUP BY run_id, phase, kind, axis
HAVING SUM(transfer_ps) > 0
