/*---
parameters:
  run: The run, by its id.
  begin_ps: Start of the window.
  finish_ps: End of the window, exclusive.
  most: Number of devices; those of the lowest numbers that run an op in the window.
reads_runs: [run]
description: >
  What devices do in a window of time, as bars in lanes: the core of each device, its communication, and the layers and
  parts of the model that the first device runs.
notes: >
  Idle time of less than a thousandth of the window has no bar.
---*/
WITH inside AS (
  SELECT run_id, device_id, instruction_id, iteration, start_ps, start_ps + duration_ps AS end_ps, idle_before_ps
  FROM main.ops
  WHERE
    run_id = run AND is_leaf AND device_id IS NOT NULL AND start_ps - COALESCE(idle_before_ps, 0) < finish_ps
    AND start_ps + duration_ps > begin_ps
),

shown AS (
  SELECT *
  FROM inside
  QUALIFY DENSE_RANK() OVER (ORDER BY device_id) <= most
),

ops AS (
  SELECT
    o.device_id, o.start_ps, o.end_ps, o.idle_before_ps, i.name, i.part, c.class, CASE
      WHEN l.layers_per_iteration IS NULL THEN l.first_layer
      ELSE l.first_layer + o.iteration * l.layers_per_iteration
    END AS layer
  FROM shown AS o
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  INNER JOIN models.instruction_classes AS c USING (run_id, instruction_id)
  LEFT JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id)
),

followed AS (
  SELECT
    *,
    ROW_NUMBER() OVER (ORDER BY start_ps, end_ps, name) AS place,
    LAG(layer) OVER (ORDER BY start_ps, end_ps, name) AS layer_before,
    LAG(part) OVER (ORDER BY start_ps, end_ps, name) AS part_before
  FROM (
    SELECT *
    FROM ops
    QUALIFY DENSE_RANK() OVER (ORDER BY device_id) = 1
  ) AS first_device
  WHERE part IS NOT NULL OR layer IS NOT NULL
),

stretches AS (
  SELECT
    *,
    COUNT(*) FILTER (
      WHERE layer IS DISTINCT FROM layer_before OR part IS DISTINCT FROM part_before
    ) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS stretch
  FROM followed
),

bars AS (
  SELECT
    device_id,
    CASE class WHEN 'communication' THEN class ELSE 'core' END AS lane,
    class, name AS op, layer, part, start_ps, end_ps
  FROM ops
  WHERE start_ps < finish_ps
  UNION ALL
  SELECT
    device_id, 'core' AS lane, 'idle' AS class, NULL AS op, NULL AS layer, NULL AS part,
    start_ps - idle_before_ps AS start_ps,
    start_ps AS end_ps
  FROM ops
  WHERE
    (LEAST(start_ps, finish_ps) - GREATEST(start_ps - idle_before_ps, begin_ps)) * 1000 >= finish_ps - begin_ps
  UNION ALL
  SELECT
    device_id, 'communication' AS lane, 'window' AS class, kind AS op, NULL AS layer, NULL AS part, start_ps, end_ps
  FROM main.collectives
  WHERE
    run_id = run AND is_async AND start_ps < finish_ps AND end_ps > begin_ps
    AND device_id IN (SELECT s.device_id FROM shown AS s)
  UNION ALL
  SELECT
    MIN(device_id) AS device_id,
    'layer' AS lane, NULL AS class,
    CONCAT_WS(' ', 'layer ' || MIN(layer), MIN(part)) AS op,
    MIN(layer) AS layer,
    MIN(part) AS part,
    MIN(start_ps) AS start_ps,
    MAX(end_ps) AS end_ps
  FROM stretches
  WHERE start_ps < finish_ps
  GROUP BY stretch
)

SELECT
  device_id,
  lane, -- core, communication, or layer.
  -- As in models.instruction_classes, or idle, or window for that of an asynchronous collective; NULL in the lane layer.
  class,
  op, -- Name of the instruction, kind of the collective, or layer and part of the model; NULL for idle time.
  layer, part,
  GREATEST(start_ps - begin_ps, 0) / 1e9 AS start_ms, -- Start in the window.
  (LEAST(end_ps, finish_ps) - begin_ps) / 1e9 AS end_ms, -- End in the window.
  (end_ps - start_ps) / 1e6 AS duration_us -- Its whole duration, with what lies outside the window.
FROM bars
