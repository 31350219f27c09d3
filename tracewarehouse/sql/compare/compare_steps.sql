/*---
parameters:
  runs: Runs to compare, as a list of run ids.
  baselines: Runs to compare them with.
reads_runs: [runs, baselines]
description: >
  Why a step takes longer or shorter than in other runs. The time of a step is split, per phase and on both sides, by
  part of the step, layer, category of op, collective and operation. The rows of a split add up to the step, and their
  differences to the difference.
notes: >
  The parts are those of models.step_parts, with exposed communication by kind and mesh axis. Where another stream
  computes beside a collective, other communication takes back what is not exposed, so it may be negative. An operation
  is the framework's name path of an op without the numbers at the end of its parts, which change when a program is
  compiled anew. Without a path it is the op's own name. The time of a step is the mean over the steps of all devices
  and runs of a side, each from start to start. The last step of a phase counts only if the phase has no other. Each
  moment counts once, for the op that covers it first, and the time without an op is idle. No layer is named in a phase
  where less than 0.9 of a side's op time has a known place in the model.
---*/
WITH parts AS (
  SELECT
    * EXCLUDE (run_id),
    LIST_CONTAINS(runs, run_id) AS is_run,
    LIST_CONTAINS(baselines, run_id) AS is_baseline,
    layer IS NOT NULL OR COALESCE(part IN ('embed', 'lm_head', 'pipeline'), FALSE) AS is_known
  FROM models.step_composition
  WHERE LIST_CONTAINS(LIST_CONCAT(runs, baselines), run_id)
),

-- the phases in which both sides know the place of most op time
known_layers AS (
  SELECT COALESCE(phase, '') AS phase
  FROM parts
  WHERE NOT is_idle
  GROUP BY phase
  HAVING
    COALESCE(SUM(time_ps) FILTER (WHERE is_run AND is_known), 0) * 10
    >= COALESCE(SUM(time_ps) FILTER (WHERE is_run), 0) * 9
    AND COALESCE(SUM(time_ps) FILTER (WHERE is_baseline AND is_known), 0) * 10
    >= COALESCE(SUM(time_ps) FILTER (WHERE is_baseline), 0) * 9
),

timed AS (
  SELECT run_id, device_id, step
  FROM models.steps
  WHERE clock = 'device' AND is_timed AND LIST_CONTAINS(LIST_CONCAT(runs, baselines), run_id)
),

exposed AS (
  SELECT run_id, c.phase, c.kind, c.axis, SUM(c.exposed_added_ps) AS time_ps, COUNT(*) AS executions
  FROM main.collectives AS c
  INNER JOIN timed USING (run_id, device_id, step)
  GROUP BY run_id, c.phase, c.kind, c.axis
),

step_parts AS (
  SELECT run_id, phase, kind || COALESCE(' over ' || axis, '') AS name, time_ps, executions
  FROM exposed
  UNION ALL
  SELECT run_id, phase, 'other communication' AS name, -time_ps AS time_ps, 0 AS executions
  FROM exposed
  UNION ALL
  SELECT
    run_id, phase,
    CASE WHEN part = 'exposed communication' THEN 'other communication' ELSE part END AS name,
    time_ps, 0 AS executions
  FROM models.step_parts
  WHERE LIST_CONTAINS(LIST_CONCAT(runs, baselines), run_id)
),

named AS (
  SELECT
    LIST_CONTAINS(runs, run_id) AS is_run,
    LIST_CONTAINS(baselines, run_id) AS is_baseline,
    phase, 'part' AS split, name, time_ps, executions
  FROM step_parts
  UNION ALL
  SELECT
    is_run, is_baseline, phase, 'layer' AS split, CASE
      WHEN is_idle THEN 'idle'
      WHEN COALESCE(phase, '') NOT IN (SELECT k.phase FROM known_layers AS k) THEN 'unknown layers'
      WHEN layer IS NULL THEN 'no layer'
      ELSE 'layer ' || layer
    END AS name, time_ps, 0 AS executions
  FROM parts
  UNION ALL
  SELECT
    is_run, is_baseline, phase, 'category' AS split,
    CASE WHEN is_idle THEN 'idle' ELSE COALESCE(category, 'no category') END AS name,
    time_ps, 0 AS executions
  FROM parts
  UNION ALL
  SELECT
    is_run, is_baseline, phase, 'collective' AS split, CASE
      WHEN is_idle THEN 'idle'
      WHEN collective IS NULL THEN 'no collective'
      ELSE collective || ' over ' || axis
    END AS name, time_ps, 0 AS executions
  FROM parts
  UNION ALL
  SELECT
    is_run, is_baseline, phase, 'operation' AS split, CASE
      WHEN is_idle THEN 'idle'
      ELSE COALESCE(REGEXP_REPLACE(op_name, '[.][0-9]+(/|:|$)', '\1', 'g'), kernel)
    END AS name, time_ps, 0 AS executions
  FROM parts
),

steps AS (
  SELECT
    phase,
    NULLIF(COUNT(*) FILTER (WHERE LIST_CONTAINS(runs, run_id)), 0) AS value_steps,
    NULLIF(COUNT(*) FILTER (WHERE LIST_CONTAINS(baselines, run_id)), 0) AS baseline_steps,
    SUM(step_ps) FILTER (WHERE LIST_CONTAINS(runs, run_id)) AS value_ps,
    SUM(step_ps) FILTER (WHERE LIST_CONTAINS(baselines, run_id)) AS baseline_ps
  FROM models.steps
  WHERE clock = 'device' AND is_timed AND LIST_CONTAINS(LIST_CONCAT(runs, baselines), run_id)
  GROUP BY phase
),

paired AS (
  SELECT
    phase, split, name,
    COALESCE(SUM(time_ps) FILTER (WHERE is_baseline), 0) AS baseline_ps,
    COALESCE(SUM(time_ps) FILTER (WHERE is_run), 0) AS value_ps,
    COALESCE(SUM(executions) FILTER (WHERE is_baseline), 0) AS baseline_executions,
    COALESCE(SUM(executions) FILTER (WHERE is_run), 0) AS value_executions
  FROM named
  GROUP BY phase, split, name
  HAVING split <> 'part' OR SUM(time_ps) <> 0 OR SUM(executions) > 0
)

SELECT
  p.phase,
  p.split, -- part, layer, category, collective or operation.
  -- The part, layer, category, collective or operation; idle for the time without an op, unknown layers where too little
  -- of it has a known one, other communication for ops of none of the collectives.
  p.name,
  p.baseline_ps / (t.baseline_steps * 1e6) AS baseline_us, -- Its time in a step of the baselines.
  p.value_ps / (t.value_steps * 1e6) AS value_us, -- Its time in a step of the runs.
  -- value_us - baseline_us; NULL if a side has no step of the phase.
  (p.value_ps * t.baseline_steps - p.baseline_ps * t.value_steps)
  / (t.value_steps * t.baseline_steps * 1e6) AS difference_us,
  -- difference_us over the difference of the whole step; NULL if the steps are equally long.
  (p.value_ps * t.baseline_steps - p.baseline_ps * t.value_steps)
  / NULLIF(t.value_ps * t.baseline_steps - t.baseline_ps * t.value_steps, 0) AS share,
  CAST(p.baseline_ps AS BIGINT) AS baseline_ps, -- Its time in the baselines over all steps and devices.
  CAST(t.baseline_steps AS BIGINT) AS baseline_steps, -- Steps of the baselines, counted on every device.
  CAST(p.value_ps AS BIGINT) AS value_ps, -- Its time in the runs over all steps and devices.
  CAST(t.value_steps AS BIGINT) AS value_steps, -- Steps of the runs, counted on every device.
  -- In the split by part, the collectives on a device in a step of the baselines; otherwise 0.
  p.baseline_executions / t.baseline_steps AS baseline_executions,
  p.value_executions / t.value_steps AS value_executions -- The same of the runs.
FROM paired AS p
INNER JOIN steps AS t ON p.phase IS NOT DISTINCT FROM t.phase
