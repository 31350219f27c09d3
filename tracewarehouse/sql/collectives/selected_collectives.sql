/*---
parameters:
  run: The run, by its id.
  from_ps: Only collectives that start then or later; NULL for all.
  until_ps: Only collectives that start before; NULL for all.
  only_phase: Only this phase; NULL for all.
  first_step: Only this step and later ones; NULL for all.
  last_step: Only this step and earlier ones; NULL for all.
reads_runs: [run]
description: >
  The collectives of a part of a run, and whether each lasts longer than others of its instruction. An execution lasts
  from the first start to the last end on its ranks. An execution with a single rank has no length.
---*/
WITH ranks AS (
  SELECT *
  FROM main.collectives
  WHERE
    run_id = run
    AND (from_ps IS NULL OR start_ps >= from_ps)
    AND (until_ps IS NULL OR start_ps < until_ps)
    AND (only_phase IS NULL OR phase = only_phase)
    AND (first_step IS NULL OR step >= first_step)
    AND (last_step IS NULL OR step <= last_step)
),

executions AS (
  SELECT instance, MIN(instruction_id) AS instruction_id, MAX(end_ps) - MIN(start_ps) AS execution_ps
  FROM ranks
  WHERE instance IS NOT NULL
  GROUP BY instance
  HAVING COUNT(*) > 1
),

medians AS (
  SELECT instruction_id, MEDIAN(execution_ps) AS median_ps
  FROM executions
  GROUP BY instruction_id
),

layers AS (
  SELECT event_id, layer
  FROM models.op_layers
  WHERE run_id = run
)

SELECT
  r.event_id, r.device_id, r.instruction_id,
  r.instance, -- The execution, which the ranks share; NULL if unknown.
  r.kind,
  r.axis, -- Mesh axis.
  r.group_size, -- Ranks in the group.
  r.rank_in_group, -- Rank of the device in the group.
  r.message_bytes, -- Bytes of the message.
  r.wire_bytes, -- Bytes that the device sends.
  r.exposed_ps, -- Time in which the device computes nothing.
  r.dtype, -- Type of the elements.
  r.phase, -- Phase.
  r.step, -- Step.
  l.layer,
  r.start_ps, -- Start.
  r.end_ps, -- End, exclusive.
  CONCAT_WS(' ', r.kind, r.axis) AS track, -- Kind and mesh axis.
  -- Whether the execution lasts more than 1.5 times the median execution of its instruction.
  COALESCE(e.execution_ps > 1.5 * m.median_ps, FALSE) AS is_slow
FROM ranks AS r
LEFT JOIN executions AS e USING (instance)
LEFT JOIN medians AS m ON e.instruction_id = m.instruction_id
LEFT JOIN layers AS l ON r.event_id = l.event_id
