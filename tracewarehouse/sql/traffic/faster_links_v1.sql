/*---
status: stable
unit: "%"
polarity: none
grain: [run_id, phase, link, axis, basis, factor]
value: saved_percent
ranges: {saved_percent: [0, 100]}
needs: [timed, collectives_in_steps]
description: >
  How much shorter a phase would be if the links of one class were faster by a factor: 100 (T - T') / T. T is the time
  of the phase's steps on all devices. Collectives whose latency neither a fit nor a prediction tells have rows of
  their own, whose values are upper bounds.
notes: >
  With a fit, a collective shortens by (1 - 1 / factor) x bytes / bandwidth, but by no more than its transfer time
  without the latency, and by no more than its exposed time. Latency and waiting for late ranks stay. The fit of a kind
  and axis comes from models.transfer_fit; a fit beyond the peak of the links does not count, and a negative latency
  counts as 0. Without a fit, a collective shortens by (1 - 1 / factor) of its exposed time, which includes latency and
  waiting. So do collectives with ranks outside the capture or unknown bytes. In a predicted run, the rules tell what a
  collective's bytes add to the step (link_ps of ops), beyond what copies and other collectives would then be waited
  for. Infinitely fast links save all of it, and others (1 - 1 / factor); timed anew, they may save a little more. Each
  moment counts once, for the collective whose op runs, so the values of several links and axes add up. Steps are those
  of models.timed_spans.
ccl_bench: scale_up_bw_utility
---*/
WITH fits AS (
  SELECT run_id, kind, axis, slope_ps_per_byte, intercept_ps
  FROM models.transfer_fit
  WHERE NOT COALESCE(is_above_peak, FALSE)
),

ruled AS (
  SELECT run_id, event_id, link_ps
  FROM main.ops
  WHERE link_ps IS NOT NULL
),

timed AS (
  SELECT
    run_id, c.phase, c.link, c.axis, c.exposed_added_ps AS exposed_ps,
    COALESCE(r.link_ps, f.slope_ps_per_byte * i.bus_bytes) AS byte_ps,
    COALESCE(r.link_ps, GREATEST(i.transfer_ps - GREATEST(f.intercept_ps, 0), 0)) AS beyond_latency_ps,
    CASE WHEN r.link_ps IS NOT NULL THEN 'rules' WHEN f.run_id IS NULL THEN 'exposed' ELSE 'fit' END AS basis
  FROM models.timed_collectives AS c
  LEFT JOIN ruled AS r USING (run_id, event_id)
  LEFT JOIN models.collective_instances AS i USING (run_id, instance)
  LEFT JOIN fits AS f
    ON i.run_id = f.run_id AND i.kind = f.kind AND i.axis = f.axis AND NOT i.is_partial AND i.bus_bytes > 0
),

saved AS (
  SELECT
    run_id, t.phase, t.link, t.axis, t.basis, a.factor, CASE
      WHEN t.basis <> 'exposed'
        THEN CAST(
          FLOOR(1000 * LEAST(t.exposed_ps, a.saved_quarters / 4e0 * t.byte_ps, t.beyond_latency_ps) + 5e-1) AS BIGINT
        )
      ELSE t.exposed_ps * a.saved_quarters * 250
    END AS saved_fs
  FROM timed AS t
  INNER JOIN models.speed_factors AS a USING (run_id)
),

summed AS (
  SELECT
    run_id, phase, link, axis, basis, factor,
    SUM(saved_fs) AS saved_fs,
    COUNT(*) AS executions
  FROM saved
  GROUP BY run_id, phase, link, axis, basis, factor
),

phases AS (
  SELECT run_id, phase, SUM(span_ps) AS span_ps
  FROM models.timed_phases
  GROUP BY run_id, phase
)

SELECT
  s.run_id, s.phase,
  s.link, -- Class of the links that are faster - ici, die, dcn, nvlink or fabric; NULL where not known.
  s.axis,
  s.basis, -- What the value rests on - fit, rules of a prediction, or exposed where neither tells the bytes' part.
  s.factor, -- How many times faster the links are - 2, 4 or infinite.
  s.saved_fs / (p.span_ps * 10) AS saved_percent, -- Share of the time saved.
  CASE WHEN s.basis = 'exposed' THEN 'upper' END AS bound,
  s.saved_fs / 1e12 AS saved_ms, -- Time saved on all devices.
  p.span_ps / 1e9 AS time_ms, -- Time of the phase, of all devices together.
  s.executions -- Executions of collectives over the links, on all devices.
FROM summed AS s
INNER JOIN phases AS p ON s.run_id = p.run_id AND s.phase IS NOT DISTINCT FROM p.phase
