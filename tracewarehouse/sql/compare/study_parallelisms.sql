/*---
parameters: [runs]
reads_runs: [runs]
description: >
  What each way to split the model reaches in a study: rates, exposed communication, and traffic of a token; a row per run
  and measure. A run whose mesh is not known has no row.
notes: >
  The way is the axes of the mesh that are longer than 1; a sequence-parallel mode over tp counts as SP. Traffic is the
  bytes that all devices send in a decode step, divided by the sequences of the batch, under the algorithm of
  main.traffic.
---*/
WITH configurations AS (
  SELECT *
  FROM macros.study_points(runs)
),

points AS (
  SELECT
    p.*,
    CASE
      WHEN r.mesh IS NOT NULL
        THEN
          COALESCE(
            NULLIF(
              CONCAT_WS(
                ' + ',
                CASE WHEN r.pp > 1 THEN 'PP' END,
                CASE WHEN r.dp > 1 THEN 'DP' END,
                CASE WHEN r.ep > 1 THEN 'EP' END,
                CASE WHEN r.tp > 1 THEN 'TP' END,
                CASE WHEN r.sp > 1 OR r.sequence_parallelism IS NOT NULL THEN 'SP' END
              ), ''
            ), 'one device'
          )
    END AS parallelism
  FROM configurations AS p
  INNER JOIN main.runs AS r USING (run_id)
),

exposed AS (
  SELECT run_id, MIN(value) AS share
  FROM main.metric_values
  WHERE
    metric = 'communication_fraction' AND LIST_CONTAINS(runs, run_id) AND dimensions ->> '$.phase' = 'decode'
  GROUP BY run_id
),

-- what is sent in a decode step of the run; NULL where some of it is not known
sent AS (
  SELECT
    run_id, CASE
      WHEN COUNT(wire_bytes) = COUNT(*) THEN SUM(wire_bytes / steps ORDER BY device_id, kind, axis)
    END AS step_bytes
  FROM models.collective_work
  WHERE phase = 'decode' AND steps > 0 AND LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

measured AS (
  SELECT
    run_id, 1 AS "position", 'tokens/s per user' AS measure, tokens_per_s_per_user AS value, FALSE AS is_less_better
  FROM points
  UNION ALL
  SELECT
    run_id, 2 AS "position", 'tokens/s per chip' AS measure, tokens_per_s_per_chip AS value, FALSE AS is_less_better
  FROM points
  UNION ALL
  SELECT
    run_id, 3 AS "position", 'exposed communication, % of a decode step' AS measure, 100 * share AS value,
    TRUE AS is_less_better
  FROM exposed
  UNION ALL
  SELECT
    run_id, 4 AS "position", 'bytes sent for a token, all devices' AS measure, s.step_bytes / p.batch_size AS value,
    TRUE AS is_less_better
  FROM sent AS s
  INNER JOIN points AS p USING (run_id)
)

SELECT
  run_id, p.workload, p.label, p.model, p.mesh, p.origin,
  p.parallelism, -- The axes that split the model or the batch, such as TP or DP + TP.
  m."position", -- Position of the measure.
  m.measure, -- What is measured, with its unit.
  m.value, -- The value.
  -- The best of its workload and parallelism.
  m.value = CASE
    WHEN m.is_less_better THEN MIN(m.value) OVER (PARTITION BY p.workload, p.parallelism, m.measure)
    ELSE MAX(m.value) OVER (PARTITION BY p.workload, p.parallelism, m.measure)
  END AS is_best
FROM measured AS m
INNER JOIN points AS p USING (run_id)
WHERE p.parallelism IS NOT NULL AND m.value IS NOT NULL
