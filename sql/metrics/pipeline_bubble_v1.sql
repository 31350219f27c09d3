/*---
metric: pipeline_bubble
version: 1
status: stable
unit: ratio
polarity: lower_is_better
grain: [run_id, phase]
value: bubble_ratio
requires: SELECT r.run_id FROM main.runs AS r WHERE r.pp > 1
description: >
  Share of a pipeline's ticks in which a stage does no work of its own: gaps without an op, and exposed time of collectives
  on axis pp, where it waits for its neighbours; over the time from the first op of a step to its last end, all stages
  together. Beside it the ideal of P stages and M microbatches, (P - 1) / (M + P - 1). A pipeline in which every stage
  computes in every tick, as one program for all devices does, fills its bubble with work that is thrown away: that is
  compute here, and the ratio can be below the ideal. Source: Huang et al., GPipe (2019).
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none.
  bubble_ratio: Share of the time without work, all devices together.
  max_ratio: That of the device that has most.
  ideal_ratio: The ideal; NULL where the number of microbatches is not known.
  waiting_ratio: Share of the time in exposed collectives on axis pp.
  stages: Size of the pipeline-parallel axis.
  microbatches: Microbatches per step.
  devices: Devices that ran the phase.
changed: First version.
---*/
WITH waited AS (
  SELECT
    c.run_id AS run_id,
    c.device_id AS device_id,
    c.phase AS phase,
    CAST(SUM(c.exposed_ps) AS BIGINT) AS waited_ps
  FROM models.communication_ops AS c
  WHERE c.axis = 'pp' AND c.step IS NOT NULL
  GROUP BY c.run_id, c.device_id, c.phase
),

piped AS (
  SELECT w.run_id AS run_id
  FROM waited AS w
  GROUP BY w.run_id
),

ticking AS (
  SELECT
    b.run_id AS run_id,
    b.device_id AS device_id,
    b.phase AS phase,
    CAST(SUM(b.last_end_ps - b.first_start_ps) AS BIGINT) AS span_ps,
    CAST(SUM(b.busy_ps) AS BIGINT) AS busy_ps
  FROM models.device_busy AS b
  WHERE b.step IS NOT NULL
  GROUP BY b.run_id, b.device_id, b.phase
),

compared AS (
  SELECT
    t.run_id AS run_id,
    t.phase AS phase,
    t.span_ps AS span_ps,
    COALESCE(v.waited_ps, 0) AS waited_ps,
    t.span_ps - t.busy_ps + COALESCE(v.waited_ps, 0) AS bubble_ps,
    CAST(r.pp AS BIGINT) AS stages,
    CAST(r.microbatches AS BIGINT) AS microbatches
  FROM ticking AS t
  INNER JOIN main.runs AS r ON t.run_id = r.run_id
  INNER JOIN piped AS p ON t.run_id = p.run_id
  LEFT JOIN waited AS v
    ON
      t.run_id = v.run_id AND t.device_id = v.device_id
      AND COALESCE(t.phase, '') = COALESCE(v.phase, '')
  WHERE r.pp > 1 AND t.span_ps > 0
)

SELECT
  k.run_id AS run_id,
  k.phase AS phase,
  CAST(SUM(k.bubble_ps) AS DOUBLE) / CAST(SUM(k.span_ps) AS DOUBLE) AS bubble_ratio,
  MAX(CAST(k.bubble_ps AS DOUBLE) / CAST(k.span_ps AS DOUBLE)) AS max_ratio,
  CAST(MIN(k.stages) - 1 AS DOUBLE) / CAST(NULLIF(MIN(k.microbatches + k.stages) - 1, 0) AS DOUBLE) AS ideal_ratio,
  CAST(SUM(k.waited_ps) AS DOUBLE) / CAST(SUM(k.span_ps) AS DOUBLE) AS waiting_ratio,
  MIN(k.stages) AS stages,
  MIN(k.microbatches) AS microbatches,
  COUNT(*) AS devices
FROM compared AS k
GROUP BY k.run_id, k.phase
