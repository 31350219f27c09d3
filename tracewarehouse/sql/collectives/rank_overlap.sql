/*---
description: >
  How many ranks of synchronous collectives overlap in time with the others of their execution. No rank leaves before
  all have arrived. So a rank that arrives after another has left belongs to another execution or group.
notes: >
  A pair is a rank and the first rank of its execution to leave. Both are on one clock: they share a host, or shared
  collectives align their hosts within the residuals. Permutes are left out, because a source need not wait for its
  target. Runs without times are left out too.
---*/
WITH clocks AS (
  SELECT
    h.run_id, h.host,
    COALESCE(h.clock_residual_ps, 0) AS slack_ps,
    CASE
      WHEN
        f.flag IS NULL
        AND (h.clock_source IN ('first_host', 'collective_ends') OR h.clock_instances IS NOT NULL)
        THEN ''
      ELSE h.host
    END AS clock
  FROM main.hosts AS h
  LEFT JOIN main.quality_flags AS f
    ON h.run_id = f.run_id AND h.host = f.host AND f.flag = 'clock_uncertain'
),

ranks AS (
  SELECT
    run_id, c.instruction_id, c.instance, c.kind,
    c.start_ps - k.slack_ps AS arrival_ps,
    MIN(c.end_ps + k.slack_ps) OVER (PARTITION BY run_id, c.instance, k.clock) AS first_leave_ps,
    COUNT(*) OVER (PARTITION BY run_id, c.instance, k.clock) AS ranks,
    ROW_NUMBER() OVER (PARTITION BY run_id, c.instance, k.clock ORDER BY c.end_ps, c.device_id) AS place
  FROM main.collectives AS c
  INNER JOIN clocks AS k USING (run_id, host)
  WHERE
    NOT c.is_async AND c.start_ps IS NOT NULL
    AND c.kind IN ('all-gather', 'all-reduce', 'all-to-all', 'ragged-all-to-all', 'reduce-scatter')
)

SELECT
  run_id, instruction_id, kind,
  COUNT(*) AS pairs, -- Pairs of ranks that were compared.
  COUNT(*) FILTER (WHERE arrival_ps <= first_leave_ps) AS overlapping, -- Those that overlap in time.
  MIN(CASE WHEN arrival_ps > first_leave_ps THEN instance END) AS first_apart -- First execution with ranks that do not.
FROM ranks
WHERE ranks > 1 AND place > 1
GROUP BY run_id, instruction_id, kind
