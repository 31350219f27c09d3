/*---
metric: bubble
version: 1
status: stable
unit: ms
polarity: lower_is_better
grain: [run_id, phase, device_id]
value: bubble_ms
needs: [device_steps]
description: >
  Time per step in which a device runs no op between the first and the last op of the step, by what comes after each
  gap.
notes: >
  Only gaps above the threshold count. The gap from one step to the next is no bubble: device_idle includes it, and
  host_gap shows where no device at all has work. A capture without steps has no row.
changed: First version.
---*/
WITH summed AS (
  SELECT
    run_id, device_id, phase,
    SUM(gap_ps) AS gap_ps,
    SUM(gap_ps) FILTER (WHERE next = 'launch') AS launch_ps,
    SUM(gap_ps) FILTER (WHERE next = 'tick') AS tick_ps,
    SUM(gap_ps) FILTER (WHERE next = 'collective') AS collective_ps,
    COUNT(*) AS gaps
  FROM models.device_gaps
  GROUP BY run_id, device_id, phase
),

running AS (
  SELECT
    d.run_id, d.device_id, d.phase, d.steps,
    COALESCE(s.gap_ps, 0) AS gap_ps,
    COALESCE(s.launch_ps, 0) AS launch_ps,
    COALESCE(s.tick_ps, 0) AS tick_ps,
    COALESCE(s.collective_ps, 0) AS collective_ps,
    COALESCE(s.gaps, 0) AS gaps
  FROM models.device_phases AS d
  LEFT JOIN summed AS s ON d.run_id = s.run_id AND d.device_id = s.device_id AND d.phase IS NOT DISTINCT FROM s.phase
  WHERE d.steps IS NOT NULL AND d.busy_ps > 0
)

SELECT
  run_id, phase, device_id,
  gap_ps / (steps * 1e9) AS bubble_ms, -- Time of all gaps per step.
  launch_ps / (steps * 1e9) AS before_launch_ms, -- Gaps before the first op of another execution of a program.
  -- Gaps before a collective on axis pp, or the start or done of one, with which a tick of a pipeline hands
  -- over.
  tick_ps / (steps * 1e9) AS before_tick_ms,
  -- Gaps before any other collective, or the start or done of one.
  collective_ps / (steps * 1e9) AS before_collective_ms,
  (gap_ps - launch_ps - tick_ps - collective_ps) / (steps * 1e9) AS before_other_ms, -- Gaps before other ops.
  gaps, -- Number of gaps over all steps.
  CAST(1 AS BIGINT) AS threshold_us, -- Gaps up to this long are not counted.
  steps -- Steps of the phase on the device.
FROM running
