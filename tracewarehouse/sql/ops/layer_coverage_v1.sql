/*---
status: experimental
unit: ratio
polarity: none
grain: [run_id, phase]
value: coverage
ranges: {coverage: [0, 1]}
needs: [layers]
description: >
  Share of the devices' op time whose place in the model is known: its transformer layer, or a part outside of the
  layers. Below 0.9 no comparison splits a step by layer.
notes: >
  Self time of the leaf ops, all devices together. The embedding, the output head and the transfers of a pipeline are
  outside of the layers.
---*/
WITH placed AS (
  SELECT
    run_id, t.phase, t.self_ps, t.part,
    CASE WHEN t.layer IS NOT NULL THEN i.layer_source END AS source,
    t.layer IS NULL AND COALESCE(t.part IN ('embed', 'lm_head', 'pipeline'), FALSE) AS is_outside
  FROM models.instruction_time AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
),

summed AS (
  SELECT
    run_id, phase,
    SUM(self_ps) AS self_ps,
    COUNT(part) AS parts,
    COALESCE(SUM(self_ps) FILTER (WHERE source IS NOT NULL OR is_outside), 0) AS known_ps,
    COALESCE(SUM(self_ps) FILTER (WHERE source = 'marked'), 0) AS marked_ps,
    COALESCE(SUM(self_ps) FILTER (WHERE source = 'loop'), 0) AS loop_ps,
    COALESCE(SUM(self_ps) FILTER (WHERE source = 'inferred'), 0) AS inferred_ps,
    COALESCE(SUM(self_ps) FILTER (WHERE is_outside), 0) AS outside_ps
  FROM placed
  GROUP BY run_id, phase
),

known AS (
  SELECT run_id
  FROM summed
  GROUP BY run_id
  HAVING SUM(known_ps) > 0 OR SUM(parts) > 0
)

SELECT
  run_id, s.phase,
  s.known_ps / s.self_ps AS coverage, -- Share in a known place.
  s.marked_ps / s.self_ps AS marked, -- Share in layers that names state.
  s.loop_ps / s.self_ps AS in_loops, -- Share in layers that a loop runs.
  s.inferred_ps / s.self_ps AS inferred, -- Share in layers that are inferred from repetition.
  s.outside_ps / s.self_ps AS outside, -- Share in parts outside of the layers.
  s.self_ps / 1e9 AS self_ms -- Self time over all devices.
FROM summed AS s
INNER JOIN known USING (run_id)
WHERE s.self_ps > 0
