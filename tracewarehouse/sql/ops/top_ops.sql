/*---
parameters:
  run: The run, by its id.
  most: The most ops of a phase.
reads_runs: [run]
description: >
  The ops on which a run's devices spend most self time in each phase. Names that differ only in their numbers count as one
  op.
---*/
WITH timed AS (
  SELECT *
  FROM models.instruction_time
  WHERE run_id = run
),

named AS (
  SELECT
    t.phase,
    REGEXP_REPLACE(i.name, '([.][0-9]+)+$', '') AS op,
    c.class, i.category, t.part, t.layer, i.source, instruction_id, t.ops, t.self_ps
  FROM timed AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  INNER JOIN models.instruction_classes AS c USING (run_id, instruction_id)
),

summed AS (
  SELECT
    phase, op, class,
    MIN(category) AS category,
    STRING_AGG(DISTINCT part, ', ' ORDER BY part) AS parts,
    CASE
      WHEN MIN(layer) < MAX(layer) THEN MIN(layer) || ' to ' || MAX(layer)
      ELSE CAST(MIN(layer) AS VARCHAR)
    END AS layers,
    MIN(source) AS source,
    COUNT(DISTINCT instruction_id) AS instructions,
    CAST(SUM(ops) AS BIGINT) AS executions,
    SUM(self_ps) / 1e9 AS self_ms
  FROM named
  GROUP BY phase, op, class
)

SELECT
  phase, -- Phase; NULL in a step without one, outside before the first and after the last.
  op, -- Name of the op, without the numbers at its end.
  class, -- Its class, as in models.instruction_classes.
  category, -- The profiler's category of one of its instructions.
  parts, -- Parts of the model.
  layers, -- The layer, or the first and the last.
  source, -- A source line.
  instructions, -- HLO instructions.
  executions, -- Executions on all devices.
  self_ms, -- Self time on all devices.
  self_ms / SUM(self_ms) OVER (PARTITION BY phase) AS share -- Share of the phase's self time.
FROM summed
QUALIFY ROW_NUMBER() OVER (PARTITION BY phase ORDER BY self_ms DESC, op) <= most
