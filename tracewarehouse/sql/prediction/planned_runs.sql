/*---
parameters:
  runs: The predicted runs, as a list of run ids.
reads_runs: [runs]
description: >
  What each predicted run promises: latencies with their ranges, throughput, cost, communication, traffic, utilization
  and memory, and the resource that each phase uses most.
notes: >
  A request has one prefill, and decode steps that all take the time of the predicted one. That step has the context of
  the middle of the generation. Ranges are those of metrics.prediction_range, which names what they leave out. Memory is
  that of the step that needs more.
---*/
WITH wanted AS (
  SELECT
    run_id, name,
    COALESCE(model, model_family, 'unknown') AS model,
    num_layers, dtype, mesh, batch_size, input_length, output_length
  FROM main.runs
  WHERE LIST_CONTAINS(runs, run_id) AND origin = 'predicted'
),

ranges AS (
  SELECT
    run_id,
    MIN(time_ms + host_ms) FILTER (WHERE phase = 'prefill') AS ttft_ms,
    MIN(low_ms + host_ms) FILTER (WHERE phase = 'prefill') AS ttft_low_ms,
    MIN(high_ms + host_ms) FILTER (WHERE phase = 'prefill') AS ttft_high_ms,
    MIN(time_ms + host_ms) FILTER (WHERE phase = 'decode') AS tpot_ms,
    MIN(low_ms + host_ms) FILTER (WHERE phase = 'decode') AS tpot_low_ms,
    MIN(high_ms + host_ms) FILTER (WHERE phase = 'decode') AS tpot_high_ms,
    MAX(extrapolated_share) AS extrapolated_share
  FROM metrics.prediction_range_v1
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

requests AS (
  SELECT
    run_id, w.output_length,
    r.ttft_ms + COALESCE((w.output_length - 1) * r.tpot_ms, 0) AS e2e_ms,
    r.ttft_low_ms + COALESCE((w.output_length - 1) * r.tpot_low_ms, 0) AS e2e_low_ms,
    r.ttft_high_ms + COALESCE((w.output_length - 1) * r.tpot_high_ms, 0) AS e2e_high_ms
  FROM wanted AS w
  INNER JOIN ranges AS r USING (run_id)
),

costs AS (
  SELECT
    run_id,
    MIN(chip_hours_per_million_tokens) FILTER (WHERE phase = 'prefill') AS prompt_chip_hours,
    MIN(usd_per_million_tokens) FILTER (WHERE phase = 'prefill') AS prompt_usd,
    MIN(chip_hours_per_million_tokens) FILTER (WHERE phase = 'decode') AS output_chip_hours,
    MIN(usd_per_million_tokens) FILTER (WHERE phase = 'decode') AS output_usd
  FROM metrics.token_cost_v1
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

facts AS (
  SELECT
    run_id,
    MIN(topology) AS topology,
    MAX(argument_bytes + output_bytes + temporary_bytes + program_bytes) AS memory_bytes,
    MIN(capacity_bytes) AS capacity_bytes,
    MIN(compiled_layers) AS compiled_layers,
    MIN(hbm_gbps) AS hbm_gbps,
    MIN(ici_factor) AS ici_factor,
    MIN(hbm_factor) AS hbm_factor,
    MIN(host_ps) / 1e9 AS host_ms,
    MIN(kernels) AS kernels,
    MIN(measured_kernels) AS measured_kernels,
    MIN(calibration) AS calibration
  FROM main.predictions
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

memories AS (
  SELECT run_id, phase, MAX(hbm_gbps) AS gbps
  FROM metrics.hbm_bandwidth_v1
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id, phase
),

shares AS (
  SELECT
    run_id, m.phase, m.mfu,
    COALESCE(l.fraction, 0) AS links_share,
    f.host_ms * m.steps / m.time_ms AS host_share,
    -- the bandwidth is that while the device is busy, and it is not while it waits for the host
    COALESCE(h.gbps / f.hbm_gbps, 0) * (1 - f.host_ms * m.steps / m.time_ms) AS hbm_share
  FROM metrics.mfu_v1 AS m
  INNER JOIN facts AS f USING (run_id)
  LEFT JOIN metrics.communication_fraction_v1 AS l USING (run_id, phase)
  LEFT JOIN memories AS h USING (run_id, phase)
),

uses AS (
  SELECT
    run_id, phase, links_share, mfu, CASE
      WHEN host_share > GREATEST(links_share, hbm_share, COALESCE(mfu, 0)) THEN 'host'
      WHEN links_share >= GREATEST(hbm_share, COALESCE(mfu, 0)) THEN 'links'
      WHEN hbm_share >= COALESCE(mfu, 0) THEN 'HBM'
      ELSE 'compute'
    END AS bottleneck
  FROM shares
),

phases AS (
  SELECT
    run_id,
    MIN(links_share) FILTER (WHERE phase = 'prefill') AS prefill_communication,
    MIN(links_share) FILTER (WHERE phase = 'decode') AS decode_communication,
    MIN(mfu) FILTER (WHERE phase = 'prefill') AS prefill_mfu,
    MIN(mfu) FILTER (WHERE phase = 'decode') AS decode_mfu,
    MIN(bottleneck) FILTER (WHERE phase = 'prefill') AS prefill_bottleneck,
    MIN(bottleneck) FILTER (WHERE phase = 'decode') AS decode_bottleneck
  FROM uses
  GROUP BY run_id
),

traffic AS (
  SELECT
    run_id,
    CASE WHEN COUNT(wire_bytes_per_device) = COUNT(*) THEN SUM(CAST(wire_bytes_per_device * devices AS BIGINT)) END
      AS wire_bytes
  FROM metrics.traffic_volume_v1
  WHERE LIST_CONTAINS(runs, run_id) AND phase = 'decode'
  GROUP BY run_id
)

SELECT
  run_id, w.name, w.model,
  w.num_layers AS layers, -- Transformer layers of the whole model.
  f.compiled_layers, -- Layers that were compiled; the others repeat the steady one of them.
  w.dtype, -- Precision.
  f.topology, -- The slice.
  c.chips, -- Its chips.
  w.mesh, -- Mesh.
  w.batch_size, -- Sequences.
  w.input_length, -- Prompt tokens of a sequence.
  w.output_length, -- Generated tokens of a sequence.
  r.ttft_ms, -- Predicted time to first token, with the time of the host as given.
  r.ttft_low_ms, -- Low end of its range.
  r.ttft_high_ms, -- High end.
  r.tpot_ms, -- Predicted time per output token.
  r.tpot_low_ms, -- Low end of its range.
  r.tpot_high_ms, -- High end.
  q.e2e_ms, -- Predicted time of a request, from prompt to last token.
  q.e2e_low_ms, -- The same at the low ends.
  q.e2e_high_ms, -- The same at the high ends.
  w.batch_size * q.output_length / q.e2e_ms / c.chips * 1e3 AS tokens_per_s_per_chip, -- Output tokens of such requests.
  p.prefill_communication, -- Exposed communication, share of the prefill.
  p.decode_communication, -- Exposed communication, share of a decode step.
  t.wire_bytes / CAST(w.batch_size AS DOUBLE) AS traffic_bytes_per_token, -- Sent by all devices for an output token.
  p.prefill_mfu, -- MFU of the prefill.
  p.decode_mfu, -- MFU of a decode step.
  f.memory_bytes, -- Memory of a device, for the whole model.
  f.capacity_bytes, -- Memory that a device has.
  f.memory_bytes <= f.capacity_bytes AS is_fitting, -- All layers of the run fit.
  k.prompt_chip_hours, -- Chip-hours for a million tokens of prompts.
  k.prompt_usd, -- Their price; NULL if unknown.
  k.output_chip_hours, -- Chip-hours for a million output tokens, as of decode steps.
  k.output_usd, -- Their price; NULL if unknown.
  p.prefill_bottleneck, -- The resource that the prefill uses most: links, HBM, compute or the given host.
  p.decode_bottleneck, -- The same of a decode step.
  r.extrapolated_share, -- Share of the time for layers that were not compiled.
  f.ici_factor, -- Links, as a multiple of the real ones.
  f.hbm_factor, -- HBM, as a multiple of the real one.
  f.host_ms, -- Time of the host that was added to each step.
  f.kernels, -- Times that were given for kernels.
  f.measured_kernels, -- Kernels that take the median of a recorded run, as in main.predictions.
  f.calibration -- The user's own rates of this chip; NULL for those that ship.
FROM wanted AS w
INNER JOIN facts AS f USING (run_id)
LEFT JOIN ranges AS r USING (run_id)
LEFT JOIN requests AS q USING (run_id)
LEFT JOIN costs AS k USING (run_id)
LEFT JOIN phases AS p USING (run_id)
LEFT JOIN traffic AS t USING (run_id)
LEFT JOIN models.run_chips AS c USING (run_id)
