/*---
metric: ici_utilization
version: 1
status: stable
unit: ratio
polarity: higher_is_better
grain: [run_id, phase, kind, axis]
value: utilization
requires: SELECT d.run_id FROM main.devices AS d WHERE d.peak_ici_gbps > 0
description: >
  Share of the peak inter-chip bandwidth that collectives reach: the bytes that a device sends over the transfer time,
  which is the shortest time over the ranks, and over the device's peak of all links in one direction. All bytes of a row
  over all its time. Ranks that send nothing, such as the target of a pair, and executions with ranks outside the capture
  are left out. The window of an asynchronous collective may outlast its transfer, so that its share is a lower bound.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  kind: Kind of collective.
  axis: Mesh axes of its groups.
  utilization: Share of the peak.
  sent_gbps: Bytes sent over transfer time.
  peak_gbps: Peak of a device; the smallest where devices differ.
  wire_bytes: Bytes that all devices send.
  executions: Executions that it covers, each on every device that sends.
  async_executions: Those that are asynchronous.
changed: First version.
---*/
SELECT
  c.run_id AS run_id,
  c.phase AS phase,
  c.kind AS kind,
  c.axis AS axis,
  CAST(CAST(SUM(c.wire_bytes) * 1000 AS DOUBLE) / CAST(SUM(i.transfer_ps) AS DOUBLE) AS DOUBLE)
  / CAST(MIN(d.peak_ici_gbps) AS DOUBLE) AS utilization,
  CAST(SUM(c.wire_bytes) * 1000 AS DOUBLE) / CAST(SUM(i.transfer_ps) AS DOUBLE) AS sent_gbps,
  MIN(d.peak_ici_gbps) AS peak_gbps,
  CAST(SUM(c.wire_bytes) AS BIGINT) AS wire_bytes,
  COUNT(*) AS executions,
  CAST(SUM(CASE WHEN c.is_async THEN 1 ELSE 0 END) AS BIGINT) AS async_executions
FROM main.collectives AS c
INNER JOIN models.collective_instances AS i ON c.run_id = i.run_id AND c.instance = i.instance
INNER JOIN main.devices AS d ON c.run_id = d.run_id AND c.device_id = d.device_id
WHERE c.wire_bytes > 0 AND d.peak_ici_gbps > 0 AND NOT i.is_partial
GROUP BY c.run_id, c.phase, c.kind, c.axis
HAVING SUM(i.transfer_ps) > 0
