/*---
parameters: [runs]
reads_runs: [runs]
description: What ran in some runs, on which devices, and how the steps were found; a row per run.
---*/
WITH axes AS (
  SELECT
    run_id,
    STRING_AGG(COALESCE(axis, '?') || '=' || size, ',' ORDER BY "position") AS mesh,
    MIN(source) AS source,
    MIN(confidence) AS confidence
  FROM main.mesh_axes
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id
),

covered AS (
  SELECT run_id, MIN(value) AS layer_coverage
  FROM main.metric_values
  WHERE
    run_id IN (SELECT UNNEST(runs)) AND metric = 'layer_coverage'
    AND COALESCE(dimensions ->> '$.phase', '') <> 'outside'
  GROUP BY run_id
),

stepped AS (
  SELECT
    run_id,
    COUNT(DISTINCT step) AS steps,
    COUNT(DISTINCT CASE WHEN is_timed THEN step END) AS timed_steps,
    STRING_AGG(DISTINCT source, ', ' ORDER BY source) AS source
  FROM models.steps
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id
)

SELECT
  run_id,
  r.name, -- Name of the run.
  r.origin, -- Where its times come from - recorded, predicted or compiled.
  COALESCE(r.model, r.model_family) AS model, -- Name of the model, or else its family; NULL if neither is known.
  r.num_layers AS layers,
  r.dtype, -- Precision of weights and activations.
  r.batch_size,
  r.input_length, -- Prompt tokens per sequence.
  r.output_length, -- Generated tokens per sequence.
  COALESCE(r.mesh, a.mesh) AS mesh, -- Mesh axes and sizes, outermost first; an axis without a name is '?'.
  CASE WHEN r.mesh IS NOT NULL THEN 'mesh' ELSE a.source END AS mesh_source, -- mesh, or inferred; NULL without a mesh.
  -- Probability that the least certain name of an axis is right.
  CASE WHEN r.mesh IS NOT NULL THEN 1.0 ELSE a.confidence END AS mesh_confidence,
  r.sequence_parallelism, -- Sequence-parallel mode.
  r.backend,
  c.kind AS device_kind, -- Kind of the devices; NULL if unknown.
  r.device_count AS devices, -- Devices in the capture.
  c.chips, -- Chips of the run, including those outside the capture; NULL without devices.
  c.captured_chips, -- Chips of the devices in the capture.
  r.host_count AS hosts,
  COALESCE(s.steps, 0) AS steps, -- Number of steps; 0 if none is known.
  COALESCE(s.timed_steps, 0) AS timed_steps, -- Steps whose whole time is known on some device or host.
  s.source AS steps_source, -- Where the steps come from; NULL without steps.
  -- Share of op time with a known layer, in the phase with the smallest share; NULL if no layer is known.
  l.layer_coverage,
  r.framework, -- Framework that ran the model, with its version.
  r.profile_start_ns AS captured_ns, -- Start of the profile, Unix time in ns; NULL if unknown.
  r.event_count AS events -- Events of the capture.
FROM main.runs AS r
LEFT JOIN models.run_chips AS c USING (run_id)
LEFT JOIN axes AS a USING (run_id)
LEFT JOIN stepped AS s USING (run_id)
LEFT JOIN covered AS l USING (run_id)
WHERE run_id IN (SELECT UNNEST(runs))
