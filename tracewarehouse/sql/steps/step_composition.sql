/*---
description: >
  What the steps of each phase consist of: the time of their ops by layer, part, category, collective and name, and the
  time without an op. The rows of a phase add up to the time of its steps on all devices, to the picosecond.
notes: >
  Steps last from start to start, as in models.timed_spans. Each moment counts once, for the op that covers it first.
---*/
WITH ops AS (
  SELECT run_id, o.device_id, o.phase, o.instruction_id, o.iteration, c.kind, c.axis, SUM(o.busy_ps) AS time_ps
  FROM models.leaf_ops AS o
  INNER JOIN models.steps AS s USING (run_id, device_id, step)
  LEFT JOIN models.communication_ops AS c USING (run_id, event_id)
  WHERE s.is_timed
  GROUP BY run_id, o.device_id, o.phase, o.instruction_id, o.iteration, c.kind, c.axis
),

-- without an instruction: the time of steps, less that of their ops
parts AS (
  SELECT run_id, device_id, phase, instruction_id, iteration, kind, axis, time_ps
  FROM ops
  UNION ALL
  SELECT
    run_id, device_id, phase, NULL AS instruction_id, NULL AS iteration, NULL AS kind, NULL AS axis, step_ps AS time_ps
  FROM models.steps
  WHERE clock = 'device' AND is_timed
  UNION ALL
  SELECT
    run_id, device_id, phase, NULL AS instruction_id, NULL AS iteration, NULL AS kind, NULL AS axis,
    -time_ps AS time_ps
  FROM ops
),

described AS (
  SELECT
    run_id, p.phase, CASE
      WHEN l.layers_per_iteration IS NULL THEN l.first_layer
      ELSE l.first_layer + p.iteration * l.layers_per_iteration
    END AS layer, i.part, i.category, i.op_name,
    REGEXP_EXTRACT(i.name, '^(.*?)([.][0-9]+)*$', 1) AS kernel,
    COALESCE(p.kind, i.collective) AS collective,
    CASE WHEN i.collective IS NOT NULL THEN COALESCE(p.axis, 'unknown') END AS axis,
    instruction_id IS NULL AS is_idle,
    p.time_ps
  FROM parts AS p
  LEFT JOIN main.instructions AS i USING (run_id, instruction_id)
  LEFT JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id)
)

SELECT
  run_id, phase,
  layer, -- Transformer layer; NULL if unknown, and for idle time.
  part, -- Part of the model; NULL if unknown, and for idle time.
  category, -- The profiler's category of the ops; NULL if it names none, and for idle time.
  op_name, -- The framework's name path of the ops; NULL if unknown, and for idle time.
  kernel, -- Name of the ops without the numbers at its end; NULL for idle time.
  collective, -- Kind of collective; NULL for ops that do not communicate, and for idle time.
  axis, -- Mesh axes of the collective; NULL without one.
  -- Time in which the device runs no op; negative if the ops of a step reach beyond it by more than its gaps.
  is_idle,
  CAST(SUM(time_ps) AS BIGINT) AS time_ps -- Time over all steps and devices.
FROM described
GROUP BY run_id, phase, layer, part, category, op_name, kernel, collective, axis, is_idle
