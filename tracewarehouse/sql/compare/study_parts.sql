/*---
parameters: [runs]
reads_runs: [runs]
description: >
  Where the time of a step goes in each configuration of a study; a row per run, phase and part of models.step_parts that
  takes any time.
notes: >
  Weights are those of dense models: the layers and the output head, divided over the axes tp and pp.
---*/
WITH points AS (
  SELECT *
  FROM macros.study_points(runs)
),

shares AS (
  SELECT *
  FROM macros.step_shares(runs)
),

weights AS (
  SELECT
    r.run_id,
    (m.body_params + m.head_params) * CASE m.product_type WHEN 'bf16' THEN 2 ELSE 1 END
    / (COALESCE(r.tp, 1) * COALESCE(r.pp, 1) * MIN(d.peak_hbm_gbps) * 1e6) AS weights_ms
  FROM main.runs AS r
  INNER JOIN models.model_shapes AS m ON r.run_id = m.run_id
  INNER JOIN main.devices AS d ON r.run_id = d.run_id
  WHERE r.num_params = r.num_params_active AND r.dtype NOT LIKE '%32'
  GROUP BY r.run_id, m.body_params, m.head_params, m.product_type, r.tp, r.pp
)

SELECT
  run_id, p.workload,
  p.configuration, -- What tells the run from the others of its workload.
  p.label,
  p.place, -- Position of the run in its workload, by throughput per chip.
  s.phase, -- Phase; empty for steps of none.
  s.part, -- The part.
  s.position, -- Position of the part.
  s.mean_ms, -- Time of a step, mean over devices and steps.
  s.share, -- Its share of the step.
  -- The share of exposed communication, on every row of the phase; 0 where nothing communicates.
  MAX(CASE WHEN s.part = 'exposed communication' THEN s.share ELSE 0 END) OVER (PARTITION BY run_id, s.phase)
    AS communication,
  g.low_ms + g.host_ms AS low_ms, -- Low end of the range of the whole step, of a predicted one.
  g.high_ms + g.host_ms AS high_ms, -- High end.
  w.weights_ms -- Time that a device needs to read its weights at the peak of its memory; NULL if unknown.
FROM points AS p
INNER JOIN shares AS s USING (run_id)
LEFT JOIN weights AS w USING (run_id)
LEFT JOIN metrics.prediction_range_v1 AS g ON s.run_id = g.run_id AND s.phase = g.phase
