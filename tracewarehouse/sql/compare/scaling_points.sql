/*---
macro: scaling_points
parameters:
  runs: The runs, as a list of run ids.
reads_runs: [runs]
description: >
  Throughput of a workload on each number of chips, in the best run there, beside perfect scaling from the fewest chips.
  A workload that ran on one number of chips alone has no row.
notes: A workload is a model with its batch size and lengths. Only devices of one kind are compared.
---*/
WITH best AS (
  SELECT
    model || ', batch ' || batch_size || ', ' || input_length || ' in, ' || output_length || ' out' AS workload,
    device_kind, chips,
    MAX(tokens_per_s) AS tokens_per_s,
    ARG_MAX(mesh, tokens_per_s) AS mesh
  FROM macros.run_points(runs)
  WHERE tokens_per_s IS NOT NULL AND chips IS NOT NULL
  GROUP BY ALL
)

SELECT
  workload, -- Model, batch and lengths.
  device_kind, -- Kind of the devices.
  chips, -- Chips of the run.
  tokens_per_s, -- Output tokens of all sequences per second.
  mesh, -- Mesh of the run.
  -- Output tokens per second if each chip gave as many as on the fewest chips.
  FIRST_VALUE(tokens_per_s / chips) OVER (PARTITION BY workload, device_kind ORDER BY chips) * chips AS linear_tokens_per_s
FROM best
QUALIFY COUNT(*) OVER (PARTITION BY workload, device_kind) > 1
