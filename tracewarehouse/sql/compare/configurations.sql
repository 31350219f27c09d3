/*---
parameters: {}
description: >
  The configuration of each run: its manifest's specification without the number of the repetition, the kind of its
  devices, and the versions and commit that ran. A predicted run adds its slice and what-if. Runs of one configuration
  are repeats; a run whose manifest holds no specification has no row.
---*/
WITH kinds AS (
  SELECT run_id, MIN(kind) AS device_kind
  FROM main.devices
  GROUP BY run_id
),

predicted AS (
  SELECT DISTINCT
    run_id, topology, rules_version, ici_factor, hbm_factor, host_ps, kernels, measured_kernels, chip_price_usd_per_h,
    calibration,
    MIN(compiled_layers) OVER (PARTITION BY run_id) AS compiled_layers,
    COUNT(*) OVER (PARTITION BY run_id) AS steps
  FROM main.predictions
),

described AS (
  SELECT
    run_id, r.origin, p.topology, p.rules_version, p.ici_factor, p.hbm_factor, p.host_ps, p.kernels, p.calibration,
    p.measured_kernels,
    p.chip_price_usd_per_h, p.compiled_layers, p.steps,
    r.backend, r.device_count, CAST(r.manifest AS JSON) AS manifest, k.device_kind
  FROM main.runs AS r
  LEFT JOIN kinds AS k USING (run_id)
  LEFT JOIN predicted AS p USING (run_id)
  WHERE r.manifest IS NOT NULL
)

SELECT
  run_id,
  CAST(
    JSON_OBJECT(
      'spec', JSON_MERGE_PATCH(manifest -> '$.spec', '{"repeat": null}'),
      'versions', manifest -> '$.versions',
      'git_commit', manifest -> '$.git_commit',
      'backend', backend,
      'device_count', device_count,
      'device_kind', device_kind,
      'origin', origin,
      'prediction', CASE
        WHEN origin = 'predicted'
          THEN [
            topology, CAST(rules_version AS VARCHAR), CAST(ici_factor AS VARCHAR), CAST(hbm_factor AS VARCHAR),
            CAST(host_ps AS VARCHAR), kernels, measured_kernels, calibration,
            CAST(chip_price_usd_per_h AS VARCHAR), CAST(compiled_layers AS VARCHAR), CAST(steps AS VARCHAR)
          ]
      END
    ) AS VARCHAR
  ) AS configuration -- The configuration as text; equal for repeats.
FROM described
WHERE JSON_TYPE(manifest -> '$.spec') = 'OBJECT'
