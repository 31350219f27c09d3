/*---
metric: collective_latency
version: 1
status: stable
unit: us
polarity: lower_is_better
grain: [run_id, phase, kind, axis, size_class]
value: transfer_us
requires: SELECT i.run_id FROM models.collective_instances AS i WHERE NOT i.is_partial
description: >
  Transfer time of collectives: the shortest time over the ranks of an execution, mean over executions, percentiles by
  nearest rank. Executions with ranks outside the capture are left out. The window of an asynchronous collective may
  outlast its transfer.
columns:
  run_id: The run.
  phase: Phase; NULL outside of phases.
  kind: Kind of collective.
  axis: Mesh axes of its groups.
  size_class: Range of the message size; NULL where it is not known.
  transfer_us: Mean transfer time.
  p50_us: Median.
  p90_us: 90th percentile.
  p99_us: 99th percentile.
  wait_us: Mean time of a rank beyond the transfer time.
  executions: Executions that it covers, over all ranks one each.
  async_executions: Those that are asynchronous.
changed: First version.
ccl_bench: comm_kernel_breakdown_tpu
---*/
WITH ranked AS (
  SELECT
    i.run_id AS run_id,
    i.phase AS phase,
    i.kind AS kind,
    i.axis AS axis,
    i.size_class AS size_class,
    i.is_async AS is_async,
    i.ranks AS ranks,
    i.transfer_ps AS transfer_ps,
    i.wait_ps AS wait_ps,
    ROW_NUMBER() OVER (
      PARTITION BY i.run_id, i.phase, i.kind, i.axis, i.size_class ORDER BY i.transfer_ps, i.instance
    ) AS place,
    COUNT(*) OVER (PARTITION BY i.run_id, i.phase, i.kind, i.axis, i.size_class) AS places
  FROM models.collective_instances AS i
  WHERE NOT i.is_partial
)

SELECT
  r.run_id AS run_id,
  r.phase AS phase,
  r.kind AS kind,
  r.axis AS axis,
  r.size_class AS size_class,
  CAST(SUM(r.transfer_ps) AS DOUBLE) / CAST(COUNT(*) * 1000000 AS DOUBLE) AS transfer_us,
  CAST(MIN(CASE WHEN r.place * 100 >= r.places * 50 THEN r.transfer_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000 AS DOUBLE) AS p50_us,
  CAST(MIN(CASE WHEN r.place * 100 >= r.places * 90 THEN r.transfer_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000 AS DOUBLE) AS p90_us,
  CAST(MIN(CASE WHEN r.place * 100 >= r.places * 99 THEN r.transfer_ps ELSE NULL END) AS DOUBLE)
  / CAST(1000000 AS DOUBLE) AS p99_us,
  CAST(SUM(r.wait_ps) AS DOUBLE) / CAST(SUM(r.ranks) * 1000000 AS DOUBLE) AS wait_us,
  COUNT(*) AS executions,
  CAST(SUM(CASE WHEN r.is_async THEN 1 ELSE 0 END) AS BIGINT) AS async_executions
FROM ranked AS r
GROUP BY r.run_id, r.phase, r.kind, r.axis, r.size_class
