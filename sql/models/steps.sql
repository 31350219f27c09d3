/*---
model: steps
description: >
  Steps on each device's clock and on each host's. A step lasts from its start to the start of the next one in the same
  place, so that the gap after it is part of it; the last by its own duration.
columns:
  run_id: The run.
  clock: device for the steps of a device, host for those that a host's markers tell.
  host: The host.
  device_id: The device; NULL on the host's clock.
  step: Number of the step in the run.
  phase: prefill or decode; NULL for a step of neither.
  start_ps: Start since the run's profile start.
  end_ps: End of the step's own work, exclusive.
  until_ps: Start of the next step; of the last one its end.
  step_ps: Time of the step, until_ps - start_ps.
  is_last_of_phase: The next step is of another phase, or there is none.
  source: What the step was read from.
---*/
WITH marked AS (
  SELECT
    p.run_id AS run_id,
    CASE WHEN p.device_id IS NULL THEN 'host' ELSE 'device' END AS clock,
    p.host AS host,
    p.device_id AS device_id,
    p."index" AS step,
    CASE WHEN p.name IN ('prefill', 'decode') THEN p.name ELSE NULL END AS phase,
    p.start_ps AS start_ps,
    p.end_ps AS end_ps,
    p.source AS source
  FROM main.phases AS p
  WHERE p.kind = 'step'
),

followed AS (
  SELECT
    m.run_id AS run_id,
    m.clock AS clock,
    m.host AS host,
    m.device_id AS device_id,
    m.step AS step,
    m.phase AS phase,
    m.start_ps AS start_ps,
    m.end_ps AS end_ps,
    m.source AS source,
    LEAD(m.start_ps) OVER (PARTITION BY m.run_id, m.host, m.device_id ORDER BY m.start_ps, m.step) AS next_start_ps,
    LEAD(COALESCE(m.phase, 'none')) OVER (
      PARTITION BY m.run_id, m.host, m.device_id ORDER BY m.start_ps, m.step
    ) AS next_phase
  FROM marked AS m
)

SELECT
  f.run_id AS run_id,
  f.clock AS clock,
  f.host AS host,
  f.device_id AS device_id,
  f.step AS step,
  f.phase AS phase,
  f.start_ps AS start_ps,
  f.end_ps AS end_ps,
  COALESCE(f.next_start_ps, f.end_ps) AS until_ps,
  COALESCE(f.next_start_ps, f.end_ps) - f.start_ps AS step_ps,
  f.next_phase IS NULL OR f.next_phase <> COALESCE(f.phase, 'none') AS is_last_of_phase,
  f.source AS source
FROM followed AS f
