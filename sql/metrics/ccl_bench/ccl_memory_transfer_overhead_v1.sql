/*---
metric: ccl_memory_transfer_overhead
version: 1
status: compatibility
unit: "%"
polarity: lower_is_better
grain: [run_id]
value: overhead_percent
requires: SELECT run_id FROM main.host_events WHERE name = '$core.py:331 step'
description: >
  Reproduces CCL-Bench's memory_transfer_overhead with its faults, to explain a published number; use copy_overhead
  instead. Time in the windows of asynchronous copies, from the start half to the end of the done half, in which no
  compute runs, over the sum of the host's steps, events named exactly $core.py:331 step, a line number of one version of
  vLLM. Devices are merged into one timeline, so that one device's compute hides another's copies. Compute is here every
  event of a device with a category other than a copy's or a collective's, loops among them.
changed: First version.
ccl_bench: memory_transfer_overhead
---*/
WITH stepped AS (
  SELECT run_id, SUM(duration_ps) AS steps_ps
  FROM main.host_events
  WHERE name = '$core.py:331 step'
  GROUP BY run_id
),

intervals AS (
  SELECT run_id, w.event_id, w.start_ps, w.end_ps, FALSE AS is_compute
  FROM models.copy_windows AS w
  INNER JOIN main.devices AS d USING (run_id, device_id)
  WHERE w.is_async AND w.kind = 'copy' AND d.backend = 'tpu'
  UNION ALL
  SELECT run_id, event_id, start_ps, start_ps + duration_ps AS end_ps, TRUE AS is_compute
  FROM models.ccl_events
  WHERE kind IS NULL AND category IS NOT NULL AND category NOT IN ('copy', 'copy-start', 'copy-done')
),

covered AS (
  SELECT
    run_id,
    is_compute,
    start_ps,
    end_ps,
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
    ) AS exposed_ps
  FROM covered
  GROUP BY run_id
)

SELECT
  run_id, -- The run.
  x.exposed_ps * 100 / s.steps_ps AS overhead_percent, -- Share of the steps' time in percent.
  x.exposed_ps / 1e9 AS exposed_ms, -- Time in copies without compute.
  s.steps_ps / 1e9 AS steps_ms -- Duration of the host's steps.
FROM stepped AS s
INNER JOIN exposed AS x USING (run_id)
WHERE s.steps_ps > 0
