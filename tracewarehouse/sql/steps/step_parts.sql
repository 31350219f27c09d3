/*---
description: >
  Where the time of each step goes on the devices that ran it, with one row per step and part. The parts of a step add up to
  its time. Steps last from start to start, so waiting for the host is idle time.
notes: >
  A moment in which the device computes counts as compute, whatever runs beside it. In any other moment communication
  counts before copies. The last step counts as in models.timed_spans.
---*/
WITH computed AS (
  SELECT
    run_id, o.device_id, o.step,
    SUM(o.class_busy_ps) FILTER (WHERE c.class = 'matrix') AS matrix_ps,
    SUM(o.class_busy_ps) FILTER (WHERE c.class = 'attention') AS attention_ps,
    SUM(o.class_busy_ps) FILTER (WHERE o.op_class = 'copy') AS copy_ps
  FROM models.leaf_ops AS o
  INNER JOIN models.instruction_classes AS c USING (run_id, instruction_id)
  WHERE o.step IS NOT NULL AND (c.class IN ('matrix', 'attention') OR o.op_class = 'copy')
  GROUP BY run_id, o.device_id, o.step
),

exposed AS (
  SELECT run_id, device_id, step, SUM(exposed_added_ps) AS exposed_ps
  FROM main.collectives
  WHERE step IS NOT NULL
  GROUP BY run_id, device_id, step
),

measured AS (
  SELECT
    run_id, step, s.phase, s.step_ps,
    COALESCE(c.matrix_ps, 0) AS matrix_ps,
    COALESCE(c.attention_ps, 0) AS attention_ps,
    COALESCE(b.compute_ps, 0) - COALESCE(c.matrix_ps, 0) - COALESCE(c.attention_ps, 0) AS other_ps,
    COALESCE(b.busy_ps, 0) AS busy_ps,
    COALESCE(c.copy_ps, 0) AS copy_ps,
    -- Busy without computing, which communication and copies share.
    COALESCE(b.busy_ps - b.compute_ps, 0) AS moving_ps,
    COALESCE(e.exposed_ps, 0) AS exposed_ps
  FROM models.steps AS s
  LEFT JOIN models.device_busy AS b USING (run_id, device_id, step)
  LEFT JOIN computed AS c USING (run_id, device_id, step)
  LEFT JOIN exposed AS e USING (run_id, device_id, step)
  WHERE s.clock = 'device' AND s.is_timed
),

divided AS (
  SELECT
    *,
    -- Ops that no row of collectives has, such as one without its start, communicate too.
    LEAST(copy_ps, GREATEST(moving_ps - exposed_ps, 0)) AS waiting_ps
  FROM measured
),

summed AS (
  SELECT
    run_id, step, phase,
    COUNT(*) AS devices,
    SUM(matrix_ps) AS matrix_ps,
    SUM(attention_ps) AS attention_ps,
    SUM(other_ps) AS other_ps,
    SUM(waiting_ps) AS waiting_ps,
    SUM(moving_ps - waiting_ps) AS exposed_ps,
    GREATEST(SUM(step_ps - busy_ps), 0) AS idle_ps
  FROM divided
  GROUP BY run_id, step, phase
),

parts AS (
  SELECT run_id, step, phase, devices, 'matrix' AS part, 0 AS position, matrix_ps AS time_ps
  FROM summed
  UNION ALL
  SELECT run_id, step, phase, devices, 'attention' AS part, 1 AS position, attention_ps AS time_ps
  FROM summed
  UNION ALL
  SELECT run_id, step, phase, devices, 'other compute' AS part, 2 AS position, other_ps AS time_ps
  FROM summed
  UNION ALL
  SELECT run_id, step, phase, devices, 'waiting for copies' AS part, 3 AS position, waiting_ps AS time_ps
  FROM summed
  UNION ALL
  SELECT run_id, step, phase, devices, 'exposed communication' AS part, 4 AS position, exposed_ps AS time_ps
  FROM summed
  UNION ALL
  SELECT run_id, step, phase, devices, 'idle' AS part, 5 AS position, idle_ps AS time_ps
  FROM summed
)

SELECT
  run_id, step, phase,
  part, -- matrix, attention, other compute, waiting for copies, exposed communication, or idle.
  position, -- Position of the part, from 0.
  -- Time of all devices in the part. Exposed communication is time in which the op line runs a collective, or the start
  -- or done of one. Idle is 0 if ops reach beyond the steps by more than the idle time.
  CAST(time_ps AS BIGINT) AS time_ps,
  time_ps / (devices * 1e9) AS mean_ms -- Mean over the devices that ran the step.
FROM parts
