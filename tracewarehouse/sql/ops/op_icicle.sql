/*---
macro: op_icicle
parameters:
  run: The run, by its id.
reads_runs: [run]
description: >
  Self time of a run's devices as nested bars of the whole: programs, their layers, the parts of a layer, and ops. Ops below
  a thousandth of the time are merged as other ops; bars below half a thousandth are left out.
---*/
WITH timed AS (
  SELECT *
  FROM models.instruction_time
  WHERE run_id = run
),

named AS (
  SELECT
    COALESCE(i.module, 'no program') AS program,
    t.layer AS layer_number,
    COALESCE('layer ' || t.layer, 'no layer') AS layer,
    COALESCE(t.part, 'no part') AS part,
    REGEXP_REPLACE(i.name, '([.][0-9]+)+$', '') AS op,
    SUM(t.self_ps) AS self_ps
  FROM timed AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  GROUP BY ALL
),

kept AS (
  SELECT
    program,
    layer_number,
    layer,
    part,
    CASE WHEN self_ps * 1000 >= SUM(self_ps) OVER () THEN op ELSE 'other ops' END AS op,
    self_ps
  FROM named
),

merged AS (
  SELECT program, layer_number, layer, part, op, SUM(self_ps) AS self_ps
  FROM kept
  GROUP BY ALL
),

sized AS (
  SELECT *, SUM(self_ps) OVER () AS all_ps, SUM(self_ps) OVER (PARTITION BY program) AS program_ps
  FROM merged
),

placed AS (
  SELECT
    *,
    SUM(self_ps) OVER (
      ORDER BY
        program_ps DESC, program, layer_number NULLS LAST, part, op = 'other ops', self_ps DESC, op
      ROWS UNBOUNDED PRECEDING
    ) AS until_ps
  FROM sized
),

bars AS (
  SELECT program, layer, part, op, MIN(until_ps - self_ps) AS from_ps, MAX(until_ps) AS until_ps, MIN(all_ps) AS all_ps
  FROM placed
  GROUP BY GROUPING SETS ((program), (program, layer), (program, layer, part), (program, layer, part, op))
)

SELECT
  -- 0 for a program, 1 for a layer, 2 for a part, 3 for an op.
  CASE WHEN layer IS NULL THEN 0 WHEN part IS NULL THEN 1 WHEN op IS NULL THEN 2 ELSE 3 END AS depth,
  program, -- The program.
  layer, -- The layer; NULL above it.
  part, -- The part of the model; NULL above it.
  op, -- The op; NULL above it.
  from_ps / all_ps AS begins, -- Where the bar begins, as a share of all self time.
  until_ps / all_ps AS ends, -- Where the bar ends.
  (until_ps - from_ps) / all_ps AS share, -- Its length.
  (until_ps - from_ps) / 1e9 AS self_ms -- Its self time, on all devices.
FROM bars
WHERE (until_ps - from_ps) * 2000 >= all_ps
