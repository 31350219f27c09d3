/*---
model: what_ifs
description: >
  What the predictions of each run changed about the real slice, as text. A prediction of the slice as it is has no row.
---*/
WITH changed AS (
  SELECT
    run_id,
    MIN(ici_factor) AS ici_factor,
    MIN(hbm_factor) AS hbm_factor,
    MIN(host_ps) AS host_ps,
    MIN(kernels) AS kernels
  FROM main.predictions
  GROUP BY run_id
)

SELECT
  run_id,
  -- Factors of links and HBM, time of the host for a step, and of kernels in microseconds.
  CONCAT_WS(
    ', ',
    CASE WHEN ici_factor <> 1 THEN 'ICI x ' || CAST(ici_factor AS VARCHAR) END,
    CASE WHEN hbm_factor <> 1 THEN 'HBM x ' || CAST(hbm_factor AS VARCHAR) END,
    CASE WHEN host_ps <> 0 THEN 'host ' || CAST(host_ps / 1e9 AS VARCHAR) || ' ms' END,
    'kernels ' || kernels
  ) AS what_if
FROM changed
WHERE ici_factor <> 1 OR hbm_factor <> 1 OR host_ps <> 0 OR kernels IS NOT NULL
