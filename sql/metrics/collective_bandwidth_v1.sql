/*---
metric: collective_bandwidth
version: 1
status: stable
unit: GB/s
polarity: higher_is_better
grain: [run_id, phase, kind, axis, size_class]
value: bus_gbps
requires: SELECT i.run_id FROM models.collective_instances AS i WHERE NOT i.is_partial AND i.bus_bytes > 0
description: >
  Bus bandwidth of collectives: message bytes times the factor of the kind (all-reduce 2 (n-1)/n, all-gather,
  reduce-scatter and all-to-all (n-1)/n, collective-permute 1, in whole bytes), over the transfer time, which is
  the shortest time over the ranks. All bytes of a row over all its time, in decimal GB. Executions with ranks outside the capture are left out,
  since their transfer time is not known. The window of an asynchronous collective may outlast its transfer, so that its
  bandwidth is a lower bound.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  kind: Kind of collective.
  axis: Mesh axes of its groups.
  size_class: Range of the message size.
  bus_gbps: Bus bandwidth.
  algorithm_gbps: Message bytes over transfer time.
  executions: Executions that it covers, over all ranks one each.
  async_executions: Those that are asynchronous.
  message_bytes: Message bytes of one rank, over all executions.
  transfer_ms: Transfer time over all executions.
  size_from_bytes: Smallest message size of the class.
changed: First version.
ccl_bench: bandwidth_utilization
---*/
WITH complete AS (
  SELECT
    i.run_id AS run_id,
    i.phase AS phase,
    i.kind AS kind,
    i.axis AS axis,
    i.is_async AS is_async,
    i.message_bytes AS message_bytes,
    i.bus_bytes AS bus_bytes,
    i.transfer_ps AS transfer_ps,
    i.size_class AS size_class,
    i.size_from_bytes AS size_from_bytes
  FROM models.collective_instances AS i
  WHERE NOT i.is_partial AND i.bus_bytes > 0
)

SELECT
  c.run_id AS run_id,
  c.phase AS phase,
  c.kind AS kind,
  c.axis AS axis,
  c.size_class AS size_class,
  CAST(SUM(c.bus_bytes) * 1000 AS DOUBLE) / CAST(SUM(c.transfer_ps) AS DOUBLE) AS bus_gbps,
  CAST(SUM(c.message_bytes) * 1000 AS DOUBLE) / CAST(SUM(c.transfer_ps) AS DOUBLE) AS algorithm_gbps,
  COUNT(*) AS executions,
  CAST(SUM(CASE WHEN c.is_async THEN 1 ELSE 0 END) AS BIGINT) AS async_executions,
  CAST(SUM(c.message_bytes) AS BIGINT) AS message_bytes,
  CAST(SUM(c.transfer_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS transfer_ms,
  MIN(c.size_from_bytes) AS size_from_bytes
FROM complete AS c
GROUP BY c.run_id, c.phase, c.kind, c.axis, c.size_class
HAVING SUM(c.transfer_ps) > 0
