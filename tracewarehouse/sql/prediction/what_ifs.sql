/*---
description: >
  What the predictions of each run changed about the real slice, or about the rates that ship. Others have no row.
---*/
WITH changed AS (
  SELECT
    run_id,
    MIN(ici_factor) AS ici_factor,
    MIN(hbm_factor) AS hbm_factor,
    MIN(host_ps) AS host_ps,
    MIN(kernels) AS kernels,
    MIN(chip_price_usd_per_h) AS chip_price_usd_per_h,
    MIN(calibration) AS calibration
  FROM main.predictions
  GROUP BY run_id
)

SELECT
  run_id,
  ici_factor, -- How many times as fast the links are.
  hbm_factor, -- How many times as fast the HBM is.
  host_ps, -- Time that the host adds to each step.
  kernels, -- Times of kernels in place of those of the rules, as JSON; NULL without any.
  chip_price_usd_per_h, -- Price of a chip for an hour in place of the list price; NULL for the list price.
  calibration -- The user's own rates; NULL for those that ship.
FROM changed
WHERE
  ici_factor <> 1 OR hbm_factor <> 1 OR host_ps <> 0 OR COALESCE(kernels, calibration) IS NOT NULL
  OR chip_price_usd_per_h IS NOT NULL
