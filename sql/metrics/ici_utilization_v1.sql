/*---
metric: ici_utilization
version: 1
status: stable
unit: ratio
polarity: higher_is_better
grain: [run_id, phase, kind, axis]
value: utilization
requires: SELECT run_id FROM main.devices WHERE peak_ici_gbps > 0
needs: [inter_chip_links, link_peak, sent_bytes]
description: >
  Share of the peak inter-chip bandwidth that collectives reach: the bytes that a device sends, divided by the
  transfer time (the shortest time over the ranks) and by the device's peak of all links in one direction. A row
  divides the sum of its bytes by the sum of its time. Ranks that send nothing, such as the target of a pair, and
  executions with ranks outside the capture are left out. The window of an asynchronous collective may outlast its
  transfer, so that its share is a lower bound.
changed: First version.
---*/
SELECT
  run_id, -- The run.
  c.phase, -- Phase; NULL outside of phases.
  c.kind, -- Kind of collective.
  c.axis, -- Mesh axes of its groups.
  SUM(c.wire_bytes) * 1000 / SUM(i.transfer_ps) / MIN(d.peak_ici_gbps) AS utilization, -- Share of the peak.
  SUM(c.wire_bytes) * 1000 / SUM(i.transfer_ps) AS sent_gbps, -- Bytes sent over transfer time.
  MIN(d.peak_ici_gbps) AS peak_gbps, -- Peak of a device; the smallest where devices differ.
  CAST(SUM(c.wire_bytes) AS BIGINT) AS wire_bytes, -- Bytes that all devices send.
  COUNT(*) AS executions, -- Executions that it covers, each on every device that sends.
  COUNT(*) FILTER (WHERE c.is_async) AS async_executions -- Those that are asynchronous.
FROM main.collectives AS c
INNER JOIN models.collective_instances AS i USING (run_id, instance)
INNER JOIN main.devices AS d USING (run_id, device_id)
WHERE c.wire_bytes > 0 AND d.peak_ici_gbps > 0 AND NOT i.is_partial
GROUP BY run_id, c.phase, c.kind, c.axis
HAVING SUM(i.transfer_ps) > 0
