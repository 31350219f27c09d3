/*---
status: stable
unit: us
polarity: none
grain: [run_id, kind, axis]
value: latency_us
needs: [recorded, fitted_transfers]
description: >
  Hockney's model of a transfer, time = latency + bytes / bandwidth, fitted by least squares to the collectives of a
  kind and axis. There is a row only if the data support the fit.
notes: >
  The time of an execution is the shortest over its ranks; the bytes are those that a device sends under the row's
  algorithm. A fit needs at least three sizes that ran twice or more, time that grows with size, and an r2 of 0.9 or
  more. Latency and bandwidth have 95 % intervals. Differences are taken in whole units of their range, one part in
  2^20 or finer. A window of an asynchronous collective may outlast its transfer, which raises the latency. Source:
  Hockney, The communication challenge for MPP, Parallel Computing 20 (1994); models.transfer_fit names the source of
  the intervals.
ccl_bench: hockney
---*/
SELECT
  run_id, kind, axis,
  link, -- Class of the links that carry them: die, ici, nvlink or fabric, or mixed; NULL where not known.
  intercept_ps / 1e6 AS latency_us, -- Time of an empty message; may be below 0 if the model does not fit.
  (intercept_ps - intercept_error_ps) / 1e6 AS latency_low_us, -- Lower end of its 95 % interval.
  (intercept_ps + intercept_error_ps) / 1e6 AS latency_high_us, -- Upper end.
  1e3 / slope_ps_per_byte AS bandwidth_gbps, -- Bytes per time beyond the latency, decimal.
  -- Lower end of its 95 % interval.
  1e3 / (slope_ps_per_byte + slope_error_ps_per_byte) AS bandwidth_low_gbps,
  -- Upper end; NULL if the interval of the time per byte reaches 0.
  CASE
    WHEN slope_ps_per_byte > slope_error_ps_per_byte
      THEN 1e3 / (slope_ps_per_byte - slope_error_ps_per_byte)
  END AS bandwidth_high_gbps,
  r2, -- Share of the variance that the line explains.
  points, async_points, sizes,
  -- True if the bandwidth exceeds the peak of a device's links in one direction; such a fit is wrong. NULL if unknown.
  is_above_peak
FROM models.transfer_fit
