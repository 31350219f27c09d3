/*---
metric: hockney
version: 1
status: stable
unit: us
polarity: none
grain: [run_id, kind, axis]
value: latency_us
requires: SELECT run_id FROM models.collective_instances WHERE NOT is_partial AND bus_bytes > 0
description: >
  Hockney's model of a transfer, time = latency + bytes / bandwidth, fitted by least squares to the transfer time of each
  execution (the shortest over its ranks) and the bytes that a device sends under the row's algorithm. Differences are
  taken in whole units of their range, one part in 2^20 or finer. There is no row below two distinct sizes. A window of an
  asynchronous collective may outlast its transfer, which raises the latency. Source: Hockney, The communication challenge
  for MPP, Parallel Computing 20 (1994).
changed: First version.
ccl_bench: hockney
---*/
SELECT
  run_id, -- The run.
  kind, -- Kind of collective.
  axis, -- Mesh axes of its groups.
  intercept_ps / 1e6 AS latency_us, -- Time of an empty message; below 0 where the line falls short of the model.
  -- Bytes per time beyond it, decimal; NULL where time does not grow with size.
  CASE WHEN slope_ps_per_byte > 0 THEN 1e3 / slope_ps_per_byte END AS bandwidth_gbps,
  r2, -- Share of the variance that the line explains; NULL where all times are equal.
  points, -- Executions, over all ranks one each.
  async_points, -- Those that are asynchronous.
  sizes -- Distinct sizes.
FROM models.transfer_fit
