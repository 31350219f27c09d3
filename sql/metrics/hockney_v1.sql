/*---
metric: hockney
version: 1
status: stable
unit: us
polarity: none
grain: [run_id, kind, axis]
value: latency_us
requires: SELECT i.run_id FROM models.collective_instances AS i WHERE NOT i.is_partial AND i.bus_bytes > 0
description: >
  Hockney's model of a transfer, time = latency + bytes / bandwidth, fitted by least squares to the transfer time of each
  execution (the shortest over its ranks) and the bytes that a device sends under the row's algorithm. Differences are
  taken in whole units of their range, one part in 2^20 or finer. There is no row below two distinct sizes. A window of an
  asynchronous collective may outlast its transfer, which raises the latency. Source: Hockney, The communication challenge
  for MPP, Parallel Computing 20 (1994).
columns:
  run_id: The run.
  kind: Kind of collective.
  axis: Mesh axes of its groups.
  latency_us: Time of an empty message; below 0 where the line falls short of the model.
  bandwidth_gbps: Bytes per time beyond it, decimal; NULL where time does not grow with size.
  r2: Share of the variance that the line explains; NULL where all times are equal.
  points: Executions, over all ranks one each.
  async_points: Those that are asynchronous.
  sizes: Distinct sizes.
changed: First version.
ccl_bench: hockney
---*/
SELECT
  f.run_id AS run_id,
  f.kind AS kind,
  f.axis AS axis,
  CAST(f.intercept_ps AS DOUBLE) / CAST(1000000 AS DOUBLE) AS latency_us,
  CASE
    WHEN f.slope_ps_per_byte > 0 THEN CAST(1000 AS DOUBLE) / CAST(f.slope_ps_per_byte AS DOUBLE)
    ELSE NULL
  END AS bandwidth_gbps,
  f.r2 AS r2,
  f.points AS points,
  f.async_points AS async_points,
  f.sizes AS sizes
FROM models.transfer_fit AS f
