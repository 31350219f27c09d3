/*---
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: bubble_ratio
ranges: {bubble_ratio: [0, 1]}
needs: [pipeline_transfers]
description: >
  Share of a pipeline's ticks in which a stage does no work of its own: gaps without an op, and exposed time of
  collectives on axis pp, in which it waits for its neighbours. ideal_ratio is the share for P stages and M
  microbatches, (P - 1) / (M + P - 1).
notes: >
  It is divided by the time from the first op of a step to its last end, all stages together. If every stage computes
  in every tick, as one program for all devices does, the bubble is filled with work that is thrown away. That counts
  as compute here, and the ratio can be below the ideal. Source: Huang et al., GPipe (2019).
---*/
WITH waited AS (
  SELECT run_id, device_id, phase, SUM(exposed_added_ps) AS waited_ps
  FROM main.collectives
  WHERE axis = 'pp' AND step IS NOT NULL
  GROUP BY run_id, device_id, phase
),

piped AS (
  SELECT run_id
  FROM waited
  GROUP BY run_id
),

ticking AS (
  SELECT run_id, device_id, phase, SUM(last_end_ps - first_start_ps) AS span_ps, SUM(busy_ps) AS busy_ps
  FROM models.device_busy
  WHERE step IS NOT NULL
  GROUP BY run_id, device_id, phase
),

compared AS (
  SELECT
    run_id, t.phase, t.span_ps,
    COALESCE(v.waited_ps, 0) AS waited_ps,
    t.span_ps - t.busy_ps + COALESCE(v.waited_ps, 0) AS bubble_ps,
    CAST(r.pp AS BIGINT) AS stages,
    CAST(r.microbatches AS BIGINT) AS microbatches
  FROM ticking AS t
  INNER JOIN main.runs AS r USING (run_id)
  INNER JOIN piped USING (run_id)
  LEFT JOIN waited AS v ON t.run_id = v.run_id AND t.device_id = v.device_id AND t.phase IS NOT DISTINCT FROM v.phase
  WHERE r.pp > 1 AND t.span_ps > 0
)

SELECT
  run_id, phase,
  SUM(bubble_ps) / SUM(span_ps) AS bubble_ratio, -- Share of the time without work, all devices together.
  MAX(bubble_ps / span_ps) AS max_ratio, -- The highest of a device.
  -- The ideal share; NULL if the number of microbatches is not known.
  (MIN(stages) - 1) / NULLIF(MIN(microbatches + stages) - 1, 0) AS ideal_ratio,
  SUM(waited_ps) / SUM(span_ps) AS waiting_ratio, -- Share of the time in exposed collectives on axis pp.
  MIN(stages) AS stages, -- Size of the pipeline-parallel axis.
  MIN(microbatches) AS microbatches, -- Microbatches per step.
  COUNT(*) AS devices -- Devices that ran the phase.
FROM compared
GROUP BY run_id, phase
