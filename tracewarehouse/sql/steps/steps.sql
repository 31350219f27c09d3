/*---
description: >
  Steps on each device's clock and on each host's. A step lasts from its start to the start of the next one on the
  same device or host, so it includes the gap after it.
notes: >
  The last step has its own duration. A predicted step states its whole time, so it needs no successor. is_timed marks
  the steps whose times shares and rates may use.
---*/
WITH marked AS (
  SELECT
    p.run_id,
    CASE WHEN p.device_id IS NULL THEN 'host' ELSE 'device' END AS clock,
    p.host, p.device_id,
    p."index" AS step,
    CASE WHEN p.name IN ('prefill', 'decode', 'mixed') THEN p.name END AS phase,
    p.start_ps, p.end_ps, p.source,
    g.run_id IS NOT NULL AS is_predicted
  FROM main.phases AS p
  LEFT JOIN models.predicted_runs AS g ON p.run_id = g.run_id
  WHERE p.kind = 'step'
),

followed AS (
  SELECT
    *,
    LEAD(start_ps) OVER (PARTITION BY run_id, host, device_id ORDER BY start_ps, step) AS next_start_ps,
    LEAD(phase) OVER (PARTITION BY run_id, host, device_id ORDER BY start_ps, step) AS next_phase
  FROM marked
)

SELECT
  run_id,
  clock, -- device for the steps of a device, host for those of a host's markers.
  host,
  device_id, -- The device; NULL on the host's clock.
  step, -- Number of the step in the run.
  phase, -- prefill, decode, or mixed for a batch that does both; NULL for a step of none.
  start_ps, -- Start since the run's profile start.
  end_ps, -- End of the step's own work, exclusive.
  COALESCE(next_start_ps, end_ps) AS until_ps, -- Start of the next step; for the last one, its end.
  COALESCE(next_start_ps, end_ps) - start_ps AS step_ps, -- Time of the step, until_ps - start_ps.
  -- True for the last step: until_ps is the end of its own work, and the wait after it is not known.
  next_start_ps IS NULL AND NOT is_predicted AS is_last,
  -- True if the whole time is known, because the next step ends it. Also true if the device or host has no such step of
  -- the phase; the step's own duration is then all that is known.
  next_start_ps IS NOT NULL OR COUNT(next_start_ps) OVER (PARTITION BY run_id, host, device_id, phase) = 0 AS is_timed,
  -- True if this step and the next give tokens to requests that generate, so the time of a token is known. Also true
  -- for a predicted step without a next one.
  COALESCE(
    phase IN ('decode', 'mixed')
    AND (next_phase IN ('decode', 'mixed') OR (is_predicted AND next_start_ps IS NULL)),
    FALSE
  ) AS is_followed_decode,
  source -- Where the step comes from.
FROM followed
