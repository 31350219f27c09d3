/*---
metric: ici_bandwidth_utility
version: 1
status: stable
unit: "%"
polarity: higher_is_better
grain: [run_id, phase, factor]
value: saved_percent
requires: SELECT c.run_id FROM main.collectives AS c WHERE NOT c.is_partial
description: >
  How much shorter a phase would be with faster links: 100 (T - T') / T, T the time of the phase's steps, all devices
  together. In T' the transfer of every collective takes latency + bytes / (factor x bandwidth), with latency (0 where the
  fit has it below) and bandwidth from the fit of models.transfer_fit for its kind and axis, and never longer than it
  took; where sizes do not tell the two apart, all of the transfer counts as bandwidth, which is an upper bound. Waiting
  for late ranks stays as it is. Only exposed time can be saved. Collectives with ranks outside the capture stay as
  they are.
columns:
  run_id: The run.
  phase: Phase; NULL for the steps of none, and in a capture without steps.
  factor: How many times faster the links are - 2, 4 or infinite.
  saved_percent: Share of the time saved.
  saved_ms: Time saved on all devices.
  time_ms: Time of the phase of all devices.
  executions: Executions that are timed anew, on all devices.
  fitted_executions: Those whose latency and bandwidth are known apart.
changed: First version.
ccl_bench: scale_up_bw_utility
---*/
WITH factors AS (
  SELECT
    r2.run_id AS run_id,
    '2' AS factor,
    2 AS divisor
  FROM main.runs AS r2
  UNION ALL
  SELECT
    r4.run_id AS run_id,
    '4' AS factor,
    4 AS divisor
  FROM main.runs AS r4
  UNION ALL
  SELECT
    ri.run_id AS run_id,
    'infinite' AS factor,
    CAST(NULL AS BIGINT) AS divisor
  FROM main.runs AS ri
),

timed AS (
  SELECT
    c.run_id AS run_id,
    c.device_id AS device_id,
    c.phase AS phase,
    c.exposed_ps AS exposed_ps,
    i.transfer_ps AS transfer_ps,
    CASE
      WHEN f.slope_ps_per_byte > 0 THEN GREATEST(f.intercept_ps, CAST(0 AS DOUBLE))
      ELSE CAST(0 AS DOUBLE)
    END AS latency_ps,
    CASE
      WHEN f.slope_ps_per_byte > 0 THEN f.slope_ps_per_byte * CAST(i.bus_bytes AS DOUBLE)
      ELSE CAST(i.transfer_ps AS DOUBLE)
    END AS byte_ps,
    CASE WHEN f.slope_ps_per_byte > 0 THEN 1 ELSE 0 END AS is_fitted
  FROM main.collectives AS c
  INNER JOIN models.collective_instances AS i ON c.run_id = i.run_id AND c.instance = i.instance
  LEFT JOIN models.transfer_fit AS f ON i.run_id = f.run_id AND i.kind = f.kind AND i.axis = f.axis
  WHERE NOT i.is_partial AND i.bus_bytes > 0
),

saved AS (
  SELECT
    t.run_id AS run_id,
    t.device_id AS device_id,
    t.phase AS phase,
    a.factor AS factor,
    t.is_fitted AS is_fitted,
    CAST(
      CAST(1000 AS DOUBLE) * LEAST(
        CAST(t.exposed_ps AS DOUBLE),
        GREATEST(
          CAST(t.transfer_ps AS DOUBLE) - t.latency_ps
          - COALESCE(CAST(t.byte_ps AS DOUBLE) / CAST(a.divisor AS DOUBLE), CAST(0 AS DOUBLE)),
          CAST(0 AS DOUBLE)
        )
      ) AS BIGINT
    ) AS saved_fs
  FROM timed AS t
  INNER JOIN factors AS a ON t.run_id = a.run_id
),

summed AS (
  SELECT
    s.run_id AS run_id,
    s.device_id AS device_id,
    s.phase AS phase,
    s.factor AS factor,
    CAST(SUM(s.saved_fs) AS BIGINT) AS saved_fs,
    COUNT(*) AS executions,
    CAST(SUM(s.is_fitted) AS BIGINT) AS fitted_executions
  FROM saved AS s
  GROUP BY s.run_id, s.device_id, s.phase, s.factor
),

communicating AS (
  SELECT
    k.run_id AS run_id,
    k.phase AS phase,
    k.factor AS factor
  FROM summed AS k
  GROUP BY k.run_id, k.phase, k.factor
)

SELECT
  d.run_id AS run_id,
  d.phase AS phase,
  n.factor AS factor,
  CAST(SUM(COALESCE(m.saved_fs, 0)) AS DOUBLE) / CAST(SUM(d.span_ps) * 10 AS DOUBLE) AS saved_percent,
  CAST(SUM(COALESCE(m.saved_fs, 0)) AS DOUBLE) / CAST(1000000000000 AS DOUBLE) AS saved_ms,
  CAST(SUM(d.span_ps) AS DOUBLE) / CAST(1000000000 AS DOUBLE) AS time_ms,
  CAST(SUM(COALESCE(m.executions, 0)) AS BIGINT) AS executions,
  CAST(SUM(COALESCE(m.fitted_executions, 0)) AS BIGINT) AS fitted_executions
FROM models.device_phases AS d
INNER JOIN communicating AS n ON d.run_id = n.run_id AND COALESCE(d.phase, '') = COALESCE(n.phase, '')
LEFT JOIN summed AS m
  ON
    d.run_id = m.run_id AND d.device_id = m.device_id AND n.factor = m.factor
    AND COALESCE(d.phase, '') = COALESCE(m.phase, '')
GROUP BY d.run_id, d.phase, n.factor
HAVING SUM(d.span_ps) > 0
