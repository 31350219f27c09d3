/*---
metric: ccl_memory_transfer_overhead
version: 1
status: compatibility
unit: "%"
polarity: lower_is_better
grain: [run_id]
value: overhead_percent
description: >
  Reproduces CCL-Bench's memory_transfer_overhead with its faults, to explain a published number; use copy_overhead
  instead.
notes: >
  It takes the time from the start of a copy's start half to the start of its done half in which no compute runs. It
  divides this by the sum of the host's steps, events named exactly $core.py:331 step, a line number of one version of
  vLLM. Devices are merged into one timeline of their own clocks, so one device's compute hides another's copies.
  Compute is every event of a TPU except numbered halves of copies, programs named jit_ and dependency-wait. So
  collectives, halves without a number, loops and steps are compute. The result is rounded to four decimals.
changed: First version.
ccl_bench: memory_transfer_overhead
---*/
WITH stepped AS (
  SELECT run_id, SUM(duration_ps) AS steps_ps
  FROM models.ccl_steps
  GROUP BY run_id
),

intervals AS (
  SELECT run_id, event_id, start_offset_ps AS start_ps, end_offset_ps AS end_ps, FALSE AS is_compute
  FROM models.ccl_copies
  WHERE purpose = 'overhead'
  UNION ALL
  SELECT
    run_id, event_id,
    device_offset_ps AS start_ps,
    device_offset_ps + device_duration_ps AS end_ps,
    TRUE AS is_compute
  FROM models.ccl_events
  WHERE
    is_tpu AND device_offset_ps IS NOT NULL AND device_duration_ps > 0
    AND name NOT LIKE '%copy-start.%' AND name NOT LIKE '%copy-done.%' AND NOT REGEXP_MATCHES(name, '^jit_')
    AND name NOT LIKE '%dependency-wait%' AND name <> '$core.py:331 step'
),

covered AS (
  SELECT
    * EXCLUDE (event_id),
    MAX(end_ps) OVER earlier AS covered_until_ps,
    MAX(CASE WHEN is_compute THEN end_ps END) OVER earlier AS computed_until_ps
  FROM intervals
  WINDOW earlier AS (PARTITION BY run_id ORDER BY start_ps, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),

exposed AS (
  SELECT
    run_id,
    SUM(
      GREATEST(end_ps - GREATEST(start_ps, COALESCE(covered_until_ps, start_ps)), 0)
      - CASE
        WHEN is_compute THEN GREATEST(end_ps - GREATEST(start_ps, COALESCE(computed_until_ps, start_ps)), 0)
        ELSE 0
      END
    ) AS exposed_ps,
    COUNT(*) FILTER (WHERE NOT is_compute) AS copies
  FROM covered
  GROUP BY run_id
)

SELECT
  run_id,
  ROUND(x.exposed_ps * 100 / s.steps_ps, 4) AS overhead_percent, -- Share of the steps' time in percent.
  x.exposed_ps / 1e9 AS exposed_ms, -- Time in copies without compute.
  s.steps_ps / 1e9 AS steps_ms -- Duration of the host's steps.
FROM stepped AS s
INNER JOIN exposed AS x USING (run_id)
WHERE s.steps_ps > 0 AND x.copies > 0
