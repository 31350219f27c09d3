/*---
parameters: [run, device, from_ps, until_ps]
reads_runs: [run]
description: >
  The ops of a device in a window of time, with a row per instruction and its time in the window. Each moment counts
  once, for the op that covers it first.
---*/
SELECT
  name AS op, -- Name of the instruction.
  op_class, -- communication, copy or compute.
  category, -- The profiler's category.
  COUNT(*) AS executions, -- Executions that overlap the window.
  -- Time in the window that no earlier op covers; for each op it is the end of its duration.
  SUM(LEAST(end_ps, until_ps) - GREATEST(end_ps - busy_ps, from_ps)) / 1e6 AS time_us,
  -- Its share of the window.
  SUM(LEAST(end_ps, until_ps) - GREATEST(end_ps - busy_ps, from_ps)) / (until_ps - from_ps) AS share_of_window
FROM models.leaf_ops
WHERE run_id = run AND device_id = device AND start_ps < until_ps AND end_ps > from_ps
GROUP BY name, op_class, category
