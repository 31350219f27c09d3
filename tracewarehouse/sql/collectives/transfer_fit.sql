/*---
description: >
  Least squares of the transfer time of collectives on the bytes that a device sends, per kind and axis, with 95 %
  intervals (models.fitted_lines). A row needs three sizes or more that ran at least twice each, a time that grows with
  size, and r2 of 0.9 or more. A predicted run has no row, because a fit would return the rates that were assumed.
---*/
SELECT
  run_id, f.kind, f.axis,
  p.link, -- Class of the links that carry them.
  f.points, f.async_points, f.sizes,
  f.slope_ps AS slope_ps_per_byte, -- Time per byte.
  f.slope_error_ps AS slope_error_ps_per_byte, -- Half of its 95 % interval.
  f.intercept_ps, -- Time of an empty message.
  f.intercept_error_ps, -- Half of its 95 % interval.
  f.r2, -- Share of the variance that the line explains.
  -- True if the slope implies a rate above the peak of a device's links in one direction; such a fit is wrong. NULL if
  -- unknown.
  1e3 / f.slope_ps > NULLIF(p.peak_gbps, 0) AS is_above_peak
FROM models.fitted_lines AS f
LEFT JOIN models.collective_links AS p USING (run_id, kind, axis)
LEFT JOIN models.predicted_runs AS g USING (run_id)
WHERE
  f.subject = 'transfer'
  AND f.repeated_sizes >= 3
  AND f.slope_ps > 0
  AND f.r2 >= 0.9e0
  AND g.is_predicted IS NULL
