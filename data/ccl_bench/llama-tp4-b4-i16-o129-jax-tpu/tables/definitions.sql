CREATE VIEW main.runs AS SELECT "run_id", "name", "origin", "backend", "format", "host_count", "device_count", "profile_start_ns", "profile_stop_ns", "event_count", "model", "model_family", "dtype", "batch_size", "input_length", "output_length", "num_layers", "hidden_size", "num_heads", "head_dim", "num_params", "vocab_size", "num_params_active", "num_params_embedding", "has_tied_embeddings", "capacity_factor", "mesh", "pp", "dp", "ep", "tp", "sp", "sequence_parallelism", "microbatches", "framework", "card", "manifest", "costs", "is_truncated", "missing_hosts", "missing_devices", "source_digest", "source_bytes", "ingest_version", "schema_version" FROM read_parquet('runs.parquet', hive_partitioning = false);

CREATE VIEW main.quality_flags AS SELECT "run_id", "index", "flag", "host", "detail" FROM read_parquet('quality_flags.parquet', hive_partitioning = false);

CREATE VIEW main.hosts AS SELECT "run_id", "host", "host_index", "hostname", "file_name", "digest", "bytes", "profile_start_ns", "profile_stop_ns", "clock_offset_ps", "clock_source", "clock_correction_ps", "clock_residual_ps", "clock_instances", "event_count" FROM read_parquet('hosts.parquet', hive_partitioning = false);

CREATE VIEW main.devices AS SELECT "run_id", "device_id", "host", "plane", "local_ordinal", "global_id", "backend", "kind", "chip_id", "core_id", "pp_index", "dp_index", "ep_index", "tp_index", "sp_index", "first_layer", "last_layer", "first_slot", "peak_flops_per_s", "peak_int8_flops_per_s", "peak_fp8_flops_per_s", "peak_hbm_gbps", "peak_ici_gbps", "link", "peak_link_gbps", "peak_die_gbps", "peak_source", "chip_price_usd_per_h", "chip_price_source" FROM read_parquet('devices.parquet', hive_partitioning = false);

CREATE VIEW main.planes AS SELECT "run_id", "plane_index", "host", "plane", "plane_id", "kind", "device_id", "line_count" FROM read_parquet('planes.parquet', hive_partitioning = false);

CREATE VIEW main.lines AS SELECT "run_id", "line_index", "plane_index", "host", "plane", "line", "kind", "line_id", "display_name", "display_id", "timestamp_ns", "duration_ps", "first_start_ps", "last_end_ps", "device_id", "event_count", "first_event_id" FROM read_parquet('lines.parquet', hive_partitioning = false);

CREATE VIEW main.instructions AS SELECT "run_id", "instruction_id", "program_id", "module", "name", "opcode", "category", "hlo_text", "shape", "signature", "dtype", "operand_dtype", "flops", "model_flops", "bytes_accessed", "hbm_bytes_accessed", "on_chip_bytes_accessed", "given_flops", "given_bytes_accessed", "op_name", "layer", "loop_layer", "layers_per_iteration", "stage_layer", "tick", "part", "layer_source", "part_source", "layer_confidence", "source", "op_class", "collective", "async_role", "async_start", "channel_id", "message_bytes", "group_count", "group_size", "replica_groups" FROM read_parquet('instructions.parquet', hive_partitioning = false);

CREATE VIEW main.ops AS SELECT "run_id", "event_id", "host", "device_id", "plane", "line", "instruction_id", "start_ps", "duration_ps", "self_ps", "depth", "parent_event_id", "is_overlapping", "is_leaf", "idle_before_ps", "overlap_ps", "class_overlap_ps", "execution", "iteration", "phase", "step", "flops", "model_flops", "bytes_accessed", "device_offset_ps", "device_duration_ps", "basis", "low_ps", "high_ps", "is_extrapolated" FROM read_parquet('ops.parquet', hive_partitioning = false);

CREATE VIEW main.collectives AS SELECT "run_id", "event_id", "done_event_id", "second_event_id", "second_done_event_id", "host", "device_id", "instruction_id", "instance", "kind", "axis", "axis_source", "link", "channel_id", "group_index", "group_size", "rank_in_group", "is_partial", "message_bytes", "wire_bytes", "dtype", "is_async", "start_ps", "end_ps", "exposed_ps", "exposed_added_ps", "exposed_done_ps", "hidden_ps", "window_source", "iteration", "phase", "step", "previous_axis", "previous_end_ps", "previous_phase", "previous_step" FROM read_parquet('collectives.parquet', hive_partitioning = false);

CREATE VIEW main.copies AS SELECT "run_id", "event_id", "done_event_id", "host", "device_id", "instruction_id", "is_async", "start_ps", "end_ps", "exposed_added_ps", "phase", "step" FROM read_parquet('copies.parquet', hive_partitioning = false);

CREATE VIEW main.collective_groups AS SELECT "run_id", "instruction_id", "group_index", "rank", "logical_id", "device_id" FROM read_parquet('collective_groups.parquet', hive_partitioning = false);

CREATE VIEW main.mesh_axes AS SELECT "run_id", "position", "axis", "size", "stride", "source", "confidence", "evidence" FROM read_parquet('mesh_axes.parquet', hive_partitioning = false);

CREATE VIEW main.traffic AS SELECT "run_id", "instruction_id", "source_device_id", "target_device_id", "algorithm", "bytes" FROM read_parquet('traffic.parquet', hive_partitioning = false);

CREATE VIEW main.phases AS SELECT "run_id", "host", "device_id", "kind", "name", "index", "start_ps", "end_ps", "source" FROM read_parquet('phases.parquet', hive_partitioning = false);

CREATE VIEW main.predictions AS SELECT "run_id", "phase", "program_digest", "topology", "compiler", "rules_version", "layers", "compiled_layers", "steady_spread", "context_tokens", "clock_hz", "hbm_gbps", "product_factor", "link_gbps", "hbm_factor", "ici_factor", "kernels", "host_ps", "chip_price_usd_per_h", "calibration", "argument_bytes", "output_bytes", "temporary_bytes", "program_bytes", "capacity_bytes" FROM read_parquet('predictions.parquet', hive_partitioning = false);

CREATE VIEW main.step_batches AS SELECT "run_id", "rank", "position", "step", "batch_id", "kind", "scheduled_tokens", "prefill_tokens", "decode_tokens", "padded_tokens", "requests", "min_kv_length" FROM read_parquet('step_batches.parquet', hive_partitioning = false);

CREATE VIEW main.host_events AS SELECT "run_id", "event_id", "host", "plane", "thread", "thread_id", "name", "start_ps", "duration_ps" FROM read_parquet('host_events.parquet', hive_partitioning = false);

CREATE VIEW main.counters AS SELECT "run_id", "event_id", "name", "host", "plane", "device_id", "start_ps", "value" FROM read_parquet('counters.parquet', hive_partitioning = false);

CREATE VIEW main.event_stats AS SELECT "run_id", "event_id", "name", "kind", "int_value", "double_value", "string_value", "bytes_value" FROM read_parquet('event_stats.parquet', hive_partitioning = false);

CREATE VIEW main.instruction_stats AS SELECT "run_id", "instruction_id", "name", "kind", "int_value", "double_value", "string_value", "bytes_value" FROM read_parquet('instruction_stats.parquet', hive_partitioning = false);

CREATE VIEW main.plane_stats AS SELECT "run_id", "plane_index", "host", "plane", "name", "kind", "int_value", "double_value", "string_value", "bytes_value" FROM read_parquet('plane_stats.parquet', hive_partitioning = false);

CREATE VIEW main.metadata_stats AS SELECT "run_id", "plane_index", "metadata_id", "index", "event", "name", "kind", "int_value", "double_value", "string_value", "bytes_value" FROM read_parquet('metadata_stats.parquet', hive_partitioning = false);

CREATE VIEW main.stat_metadata AS SELECT "run_id", "plane_index", "stat_id", "name", "description" FROM read_parquet('stat_metadata.parquet', hive_partitioning = false);

CREATE VIEW main.metric_values AS SELECT "run_id", "metric", "version", "dimensions", "value", "unit", "fingerprint" FROM (SELECT *, NULL AS fingerprint FROM '../metric_values.parquet' WHERE published_as IS NULL);

CREATE SCHEMA models; CREATE SCHEMA preconditions; CREATE SCHEMA metrics; CREATE SCHEMA macros;

CREATE VIEW models.ccl_marks AS WITH marks AS (
  SELECT
    run_id, e.host, e.event_id, e.start_ps, e.duration_ps,
    CASE
      WHEN REGEXP_MATCHES(e.name, '^ProfilerStep#[0-9]+$') THEN 'profiler step'
      WHEN e.name LIKE 'execute_context_%' THEN 'execute_context'
      ELSE 'run_batch'
    END AS kind,
    CAST(NULLIF(REGEXP_EXTRACT(e.name, '^ProfilerStep#([0-9]{1,18})$', 1), '') AS BIGINT) AS number
  FROM main.runs AS r
  INNER JOIN main.host_events AS e USING (run_id)
  WHERE
    r.format = 'kineto'
    AND (
      REGEXP_MATCHES(e.name, '^ProfilerStep#[0-9]+$') OR e.name LIKE 'execute_context_%'
      OR REGEXP_MATCHES(e.name, '(^|:) run_batch$')
    )
)

SELECT
  run_id, host,
  kind, -- profiler step of PyTorch, execute_context of vLLM, or run_batch of SGLang.
  event_id, -- The event.
  start_ps, -- Start.
  duration_ps, -- Duration.
  -- Position among the marks of its kind in the file, from 1: by number, or else by time.
  ROW_NUMBER() OVER (PARTITION BY run_id, host, kind ORDER BY number, start_ps, event_id) AS place,
  COUNT(*) OVER (PARTITION BY run_id, host, kind) AS places, -- Number of such marks in the file.
  -- 1 for the kind that CCL-Bench prefers of those in the file.
  DENSE_RANK() OVER (
    PARTITION BY run_id, host
    ORDER BY CASE WHEN kind = 'profiler step' THEN 1 WHEN kind = 'execute_context' THEN 2 ELSE 3 END
  ) AS choice,
  -- The same of the whole run.
  DENSE_RANK() OVER (
    PARTITION BY run_id ORDER BY CASE WHEN kind = 'profiler step' THEN 1 WHEN kind = 'execute_context' THEN 2 ELSE 3 END
  ) AS run_choice,
  -- The kind that marks the batches of a server in the run; NULL if none does.
  MIN(CASE WHEN kind <> 'profiler step' THEN kind END) OVER (PARTITION BY run_id) AS server_kind
FROM marks;

CREATE VIEW models.ccl_steps AS SELECT
  run_id, event_id,
  duration_ps, -- Duration.
  ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY start_ps, event_id) AS place, -- Position in time, from 1.
  ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY event_id) AS file_place, -- Position in the file, from 1.
  COUNT(*) OVER (PARTITION BY run_id) AS places -- Number of such events in the run.
FROM main.host_events
WHERE name = '$core.py:331 step';

CREATE VIEW models.ccl_events AS WITH instruction_stats AS (
  SELECT
    run_id, instruction_id,
    MAX(string_value) FILTER (WHERE name IN ('display_name', 'event_name')) AS event_name,
    MAX(int_value) FILTER (WHERE name = 'raw_bytes_accessed') AS raw_bytes_accessed
  FROM main.instruction_stats
  WHERE name IN ('display_name', 'event_name', 'raw_bytes_accessed')
  GROUP BY run_id, instruction_id
),

read_elsewhere AS (
  SELECT run_id, format
  FROM main.runs
  WHERE format IN ('kineto', 'nsys')
),

exported AS (
  SELECT
    run_id, o.event_id, o.host, o.plane,
    CASE WHEN o.plane LIKE '/device:%' THEN o.device_id END AS device_id,
    o.plane LIKE '/device:%' AND o.plane NOT LIKE '/device:GPU:%' AS has_facts,
    COALESCE(s.event_name, i.name) AS name,
    i.category, o.start_ps, o.duration_ps, o.device_offset_ps, o.device_duration_ps,
    COALESCE(o.bytes_accessed, i.bytes_accessed, s.raw_bytes_accessed) AS copied_bytes,
    COALESCE(o.bytes_accessed, i.bytes_accessed) AS bytes_accessed,
    COALESCE(o.model_flops, i.model_flops) AS model_flops
  FROM main.ops AS o
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  LEFT JOIN instruction_stats AS s USING (run_id, instruction_id)
  LEFT JOIN read_elsewhere AS x USING (run_id)
  WHERE
    x.format IS NULL
    AND o.line <> 'Async XLA Ops'
    AND (o.duration_ps <> 0 OR (o.line <> '_counters_' AND o.line NOT LIKE 'counters_%'))
  UNION ALL
  SELECT
    run_id, e.event_id, e.host, e.plane,
    NULL AS device_id,
    FALSE AS has_facts,
    e.name,
    NULL AS category,
    e.start_ps, e.duration_ps,
    NULL AS device_offset_ps,
    NULL AS device_duration_ps,
    NULL AS copied_bytes,
    NULL AS bytes_accessed,
    NULL AS model_flops
  FROM main.host_events AS e
  LEFT JOIN read_elsewhere AS x USING (run_id)
  WHERE
    x.format IS NULL
    AND (e.duration_ps <> 0 OR (e.thread <> '_counters_' AND e.thread NOT LIKE 'counters_%'))
),

processes AS (
  SELECT run_id, plane
  FROM main.lines
  GROUP BY run_id, plane
  UNION ALL
  SELECT run_id, plane
  FROM main.ops
  GROUP BY run_id, plane
),

with_tpus AS (
  SELECT run_id
  FROM processes
  WHERE plane LIKE '%/device:TPU:%'
  GROUP BY run_id
)

SELECT
  run_id, e.event_id, e.host,
  e.plane, -- The plane, which is a process of the trace.
  e.device_id, -- The device, on a plane of a device.
  e.plane LIKE '%/device:TPU:%' AS is_tpu, -- On a TPU.
  e.plane LIKE '%/device:TPU:%' OR t.run_id IS NULL AS counts, -- On a TPU, or any event of a run without TPUs.
  e.name, -- Name of the event.
  CASE WHEN e.has_facts THEN e.category END AS category, -- The profiler's hlo_category.
  e.start_ps, -- Start since the run's profile start.
  e.duration_ps, -- Duration.
  e.device_offset_ps, -- Start on the device's own clock.
  e.device_duration_ps, -- Duration on the device's own clock.
  -- What CCL-Bench takes for the duration, in 10^-6 of its unit: it mixes microseconds of events without a duration on
  -- the device's clock with nanoseconds of the others.
  COALESCE(e.device_duration_ps * 1000, e.duration_ps) AS mixed_duration,
  CASE WHEN e.has_facts THEN e.copied_bytes END AS copied_bytes, -- bytes_accessed, or else raw_bytes_accessed.
  CASE WHEN e.has_facts THEN e.bytes_accessed END AS bytes_accessed, -- Memory traffic that the profiler states.
  CASE WHEN e.has_facts THEN e.model_flops END AS model_flops -- Operations that the profiler states.
FROM exported AS e
LEFT JOIN with_tpus AS t USING (run_id);

CREATE VIEW models.ccl_kernels AS WITH origins AS (
  SELECT
    run_id, h.host, h.clock_offset_ps,
    h.profile_start_ns - MAX(s.int_value) AS origin_ns
  FROM main.hosts AS h
  INNER JOIN main.plane_stats AS s USING (run_id, host)
  WHERE s.name = 'base_time_ns'
  GROUP BY run_id, h.host, h.clock_offset_ps, h.profile_start_ns
),

timed AS (
  SELECT
    run_id, r.format, o.host, o.device_id, o.event_id, o.instruction_id, i.name, o.start_ps, o.duration_ps,
    t.clock_offset_ps,
    CAST(t.origin_ns AS DOUBLE) / 1e3 AS origin_us,
    CAST(t.origin_ns + (o.start_ps - t.clock_offset_ps) // 1000 AS DOUBLE) / 1e3 AS at_us,
    o.duration_ps / 1e6 AS length_us
  FROM main.runs AS r
  INNER JOIN main.ops AS o USING (run_id)
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  LEFT JOIN origins AS t USING (run_id, host)
  WHERE r.format IN ('kineto', 'nsys') AND o.line LIKE 'Stream #%' AND NOT REGEXP_MATCHES(i.name, '^Mem(cpy|set)')
)

SELECT
  run_id,
  format = 'nsys' AS is_nsys, -- From an export of Nsight Systems, of which CCL-Bench reads no steps.
  host, -- The file, which in a Kineto trace is one rank.
  device_id, -- The device.
  event_id, -- The event.
  instruction_id, -- Its instruction, which holds what it says of a collective.
  name, -- Name of the kernel.
  LOWER(name) AS lower_name, -- The same in lower case.
  -- Start since the run's profile start.
  COALESCE(clock_offset_ps + CAST(FLOOR((at_us - origin_us) * 1e6 + 5e-1) AS BIGINT), start_ps) AS start_ps,
  -- End.
  COALESCE(
    clock_offset_ps + CAST(FLOOR((at_us + length_us - origin_us) * 1e6 + 5e-1) AS BIGINT), start_ps + duration_ps
  ) AS end_ps,
  duration_ps -- Duration.
FROM timed;

CREATE VIEW models.collective_links AS WITH carried AS (
  SELECT
    run_id, c.kind, c.axis, c.link,
    MIN(CASE WHEN c.link = 'die' THEN d.peak_die_gbps ELSE COALESCE(d.peak_ici_gbps, d.peak_link_gbps) END) AS peak_gbps
  FROM main.collectives AS c
  INNER JOIN main.devices AS d USING (run_id, device_id)
  WHERE c.link IS DISTINCT FROM 'dcn'
  GROUP BY run_id, c.kind, c.axis, c.link
)

SELECT
  run_id, kind, axis,
  CASE WHEN COUNT(*) = 1 THEN MIN(link) ELSE 'mixed' END AS link, -- As of main.collectives; mixed for several.
  CASE WHEN COUNT(*) = 1 THEN MIN(peak_gbps) END AS peak_gbps -- Peak of a device over them, in one direction.
FROM carried
GROUP BY run_id, kind, axis;

CREATE VIEW models.collective_ranks AS WITH timed AS (
  SELECT
    run_id, event_id, instance, device_id, kind, axis, link, phase, step, group_size, is_async,
    message_bytes, wire_bytes, start_ps, end_ps, exposed_added_ps, hidden_ps,
    COALESCE(exposed_done_ps, exposed_added_ps) AS waitable_ps,
    window_source = 'fused op' AS is_fused,
    MIN(CASE WHEN window_source <> 'fused op' THEN end_ps - start_ps END)
      OVER (PARTITION BY run_id, instance) AS transfer_ps,
    COUNT(*) OVER (PARTITION BY run_id, instance) AS ranks,
    MAX(CASE WHEN is_partial THEN 1 ELSE 0 END) OVER (PARTITION BY run_id, instance) = 1 AS is_partial
  FROM main.collectives
  WHERE instance IS NOT NULL AND start_ps IS NOT NULL
)

SELECT
  run_id,
  event_id, -- The op, or the start of an asynchronous one.
  instance, device_id, kind, axis,
  link, -- dcn between slices, else NULL.
  phase, step,
  group_size, -- Devices in a group; 2 for a collective-permute pair.
  is_async, -- Split into a start and a done.
  message_bytes, -- Message of the rank.
  wire_bytes, -- Bytes that it sends.
  start_ps, -- Start.
  end_ps, -- End, exclusive.
  exposed_added_ps, -- Time in which the op line runs it and no collective before it.
  ranks, -- Ranks of the execution that are in the capture.
  is_partial, -- Ranks are missing from the capture, so transfer_ps covers only the ranks at hand.
  end_ps - start_ps AS window_ps, -- Time from its start to its end.
  is_fused, -- Part of an op that computes, so that its own time is not known.
  transfer_ps, -- Shortest time over the ranks; NULL if it is fused.
  LEAST(end_ps - start_ps - transfer_ps, waitable_ps) AS wait_ps, -- Time that the rank waits for later ones.
  hidden_ps AS overlap_ps -- Time in which the device runs ops beside it that do not communicate.
FROM timed;

CREATE VIEW models.predicted_runs AS SELECT
  run_id,
  TRUE AS is_predicted -- Always.
FROM main.runs
WHERE origin = 'predicted';

CREATE VIEW models.communication_windows AS WITH windows AS (
  SELECT
    run_id, event_id, device_id, phase, step, kind, axis, start_ps, end_ps,
    MAX(end_ps) OVER (
      PARTITION BY run_id, device_id, phase, step ORDER BY start_ps, event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS covered_until_ps
  FROM main.collectives
  WHERE start_ps IS NOT NULL
)

SELECT
  run_id,
  event_id, -- The collective's event.
  device_id, phase, step, kind, axis,
  start_ps, -- Start of the window.
  end_ps, -- End of the window, exclusive.
  -- Time of the window that no window before it in the same step covers.
  GREATEST(end_ps - GREATEST(start_ps, COALESCE(covered_until_ps, start_ps)), 0) AS new_ps
FROM windows;

CREATE VIEW models.copy_windows AS SELECT
  run_id,
  c.event_id, -- The copy, or the start.
  c.device_id,
  -- copy for copies, async for other asynchronous ops.
  CASE WHEN i.opcode IN ('copy', 'copy-start', 'copy-done') THEN 'copy' ELSE 'async' END AS kind,
  c.phase, -- Phase in which it starts; NULL in a step without one, outside before the first and after the last.
  c.step, -- Step in which it starts; NULL outside of steps.
  c.start_ps, -- Start of the window.
  c.end_ps, -- End of the window, exclusive.
  i.bytes_accessed AS bytes, -- The instruction's bytes_accessed; NULL if unknown.
  c.is_async, -- True for a start with its done.
  -- Time of the window that neither another kind of op nor an earlier copy covers.
  c.exposed_added_ps
FROM main.copies AS c
INNER JOIN main.instructions AS i USING (run_id, instruction_id);

CREATE VIEW models.leaf_ops AS SELECT
  run_id, o.event_id, o.device_id, instruction_id,
  i.name, -- Name of the instruction, such as fusion.12.
  i.module, -- Program (HLO module) of the instruction; NULL where not known.
  i.opcode, -- HLO opcode; NULL where not known.
  o.start_ps, -- Start since the run's profile start.
  o.start_ps + o.duration_ps AS end_ps, -- End, exclusive.
  o.duration_ps, -- Duration, with the events nested in it.
  o.self_ps, -- Duration without the events nested in it.
  -- Time that it adds to the leaf ops that began before it, on all streams of the device.
  o.duration_ps - o.overlap_ps AS busy_ps,
  o.duration_ps - o.class_overlap_ps AS class_busy_ps, -- The same, among the ops of its op_class.
  o.idle_before_ps, -- Time right before it in which the device ran no leaf op; NULL for the device's first.
  o.execution, o.iteration, o.phase, o.step, i.part,
  i.source, -- Source line, as file:line; NULL where not known.
  i.category,
  -- Floating-point operations; NULL if unknown.
  COALESCE(
    i.given_flops, NULLIF(o.flops, CASE WHEN i.opcode = 'custom-call' THEN 0 END),
    NULLIF(i.flops, CASE WHEN i.opcode = 'custom-call' THEN 0 END)
  ) AS flops,
  -- Floating-point operations without work that the compiler added.
  COALESCE(
    i.given_flops, NULLIF(o.model_flops, CASE WHEN i.opcode = 'custom-call' THEN 0 END),
    NULLIF(i.model_flops, CASE WHEN i.opcode = 'custom-call' THEN 0 END)
  ) AS model_flops,
  -- Memory traffic; NULL if unknown.
  COALESCE(
    i.given_bytes_accessed, NULLIF(o.bytes_accessed, CASE WHEN i.opcode = 'custom-call' THEN 0 END),
    NULLIF(i.bytes_accessed, CASE WHEN i.opcode = 'custom-call' THEN 0 END)
  ) AS bytes_accessed,
  i.op_class -- What the device does in it - communication, copy or compute.
FROM main.ops AS o
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
WHERE o.is_leaf AND o.device_id IS NOT NULL;

CREATE VIEW models.speed_factors AS SELECT
  run_id,
  '2' AS factor, -- How many times faster - 2, 4 or infinite.
  2 AS saved_quarters -- 1 - 1 / factor, in quarters.
FROM main.runs
UNION ALL
SELECT run_id, '4' AS factor, 3 AS saved_quarters
FROM main.runs
UNION ALL
SELECT run_id, 'infinite' AS factor, 4 AS saved_quarters
FROM main.runs;

CREATE VIEW models.device_peaks AS SELECT
  run_id, device_id,
  'bf16' AS product_type, -- bf16, int8 or fp8.
  peak_flops_per_s -- Operations per second; no row where not known.
FROM main.devices
WHERE peak_flops_per_s > 0
UNION ALL
SELECT run_id, device_id, 'int8' AS product_type, COALESCE(peak_int8_flops_per_s, peak_flops_per_s) AS peak_flops_per_s
FROM main.devices
WHERE peak_flops_per_s > 0
UNION ALL
SELECT run_id, device_id, 'fp8' AS product_type, COALESCE(peak_fp8_flops_per_s, peak_flops_per_s) AS peak_flops_per_s
FROM main.devices
WHERE peak_flops_per_s > 0;

CREATE VIEW models.attention_caches AS WITH operands AS (
  SELECT
    run_id, instruction_id,
    REGEXP_EXTRACT(
      hlo_text, '([a-z0-9]+)[[][0-9]+,[0-9]+,[0-9]+,[0-9]+(,[0-9]+)?[]][^ ]* %?[^ ,()]+[)], custom_call_target', 1
    ) AS dtype,
    REGEXP_EXTRACT(
      hlo_text, '[a-z0-9]+[[]([0-9,]+)[]][^ ]* %?[^ ,()]+[)], custom_call_target', 1
    ) AS dimensions
  FROM main.instructions
  WHERE
    opcode = 'custom-call'
    AND (name LIKE 'RPA%' OR name LIKE '%ragged_paged_attention%' OR op_name LIKE '%ragged_paged_attention%')
),

sized AS (
  SELECT
    run_id, instruction_id, CASE
      WHEN dtype IN ('bf16', 'f16') THEN 2
      WHEN dtype = 'f32' THEN 4
      WHEN dtype IN ('s8', 'u8') OR dtype LIKE 'f8%' THEN 1
    END AS element_bytes,
    CAST(NULLIF(REGEXP_EXTRACT(dimensions, '^([0-9]+),', 1), '') AS BIGINT) AS pages,
    CAST(NULLIF(REGEXP_EXTRACT(dimensions, '^[0-9]+,([0-9]+),', 1), '') AS BIGINT) AS page_tokens,
    CAST(NULLIF(REGEXP_EXTRACT(dimensions, '^[0-9]+,[0-9]+,([0-9]+)', 1), '') AS BIGINT)
    * CAST(NULLIF(REGEXP_EXTRACT(dimensions, '^[0-9]+,[0-9]+,[0-9]+,([0-9]+)', 1), '') AS BIGINT)
    * COALESCE(
      CAST(NULLIF(REGEXP_EXTRACT(dimensions, '^[0-9]+,[0-9]+,[0-9]+,[0-9]+,([0-9]+)', 1), '') AS BIGINT), 1
    ) AS token_elements
  FROM operands
  WHERE dtype <> ''
)

SELECT
  run_id,
  instruction_id, -- The kernel.
  element_bytes * token_elements AS token_bytes, -- Bytes of a token's keys and values in the layer, on a device.
  pages * page_tokens AS capacity_tokens -- Tokens that the cache of the layer can hold.
FROM sized
WHERE element_bytes * token_elements * pages * page_tokens > 0;

CREATE VIEW models.dispatches AS WITH executions AS (
  SELECT run_id, device_id, "index" AS execution, start_ps
  FROM main.phases
  WHERE kind = 'module' AND device_id IS NOT NULL
),

launched AS (
  SELECT
    run_id, o.device_id, o.execution,
    COALESCE(CAST(s.int_value AS VARCHAR), s.string_value) AS launch
  FROM main.ops AS o
  INNER JOIN main.event_stats AS s USING (run_id, event_id)
  WHERE o.line IN ('XLA Modules', 'Launches') AND o.execution IS NOT NULL AND s.name = 'run_id'
),

-- on TPUs the runtime's DoEnqueueProgram and the execution share a run_id, and the former has its device's ordinal; on
-- GPUs the call that launches its first kernel
enqueued AS (
  SELECT
    run_id, h.host,
    COALESCE(CAST(l.int_value AS VARCHAR), l.string_value) AS launch,
    COALESCE(CAST(n.int_value AS VARCHAR), n.string_value) AS ordinal,
    MIN(h.start_ps) AS dispatch_ps
  FROM main.host_events AS h
  INNER JOIN main.event_stats AS l USING (run_id, event_id)
  INNER JOIN main.event_stats AS n USING (run_id, event_id)
  WHERE
    (h.name = 'DoEnqueueProgram' OR h.name LIKE 'cu%' OR h.name LIKE 'hip%')
    AND l.name = 'run_id' AND n.name = 'device_ordinal'
  GROUP BY run_id, h.host, launch, ordinal
),

-- on virtual CPU devices the executions of a host are numbered as these events are
called AS (
  SELECT
    run_id, host,
    start_ps AS dispatch_ps,
    ROW_NUMBER() OVER (PARTITION BY run_id, host ORDER BY start_ps, event_id) - 1 AS execution,
    COUNT(*) OVER (PARTITION BY run_id, host) AS calls
  FROM main.host_events
  WHERE name = 'PjRtCpuExecutable::Execute'
),

placed AS (
  SELECT
    run_id, device_id, e.execution, e.start_ps, d.host, d.backend,
    CAST(d.local_ordinal AS VARCHAR) AS ordinal,
    w.launch
  FROM executions AS e
  INNER JOIN main.devices AS d USING (run_id, device_id)
  LEFT JOIN launched AS w USING (run_id, device_id, execution)
),

counted AS (
  SELECT run_id, host, COUNT(DISTINCT execution) AS executions
  FROM placed
  GROUP BY run_id, host
)

SELECT
  run_id, p.device_id, p.execution,
  q.dispatch_ps -- Start of the host's dispatch.
FROM placed AS p
INNER JOIN enqueued AS q USING (run_id, host, launch, ordinal)
WHERE q.dispatch_ps <= p.start_ps
UNION ALL
SELECT run_id, p.device_id, execution, c.dispatch_ps
FROM placed AS p
INNER JOIN called AS c USING (run_id, host, execution)
INNER JOIN counted AS n USING (run_id, host)
WHERE p.backend = 'cpu' AND c.calls = n.executions AND c.dispatch_ps <= p.start_ps;

CREATE VIEW models.memory_states AS WITH stated AS (
  SELECT
    run_id, e.host, e.event_id,
    MIN(e.start_ps) AS at_ps,
    MIN(s.string_value) FILTER (WHERE s.name = 'allocator_name') AS allocator_name,
    MIN(s.int_value) FILTER (WHERE s.name = 'index_on_host') AS index_on_host,
    MIN(s.int_value) FILTER (WHERE s.name = 'bytes_allocated') AS allocated_bytes,
    MIN(s.int_value) FILTER (WHERE s.name = 'bytes_reserved') AS reserved_bytes,
    MIN(s.int_value) FILTER (WHERE s.name = 'bytes_available') AS available_bytes,
    MIN(s.int_value) FILTER (WHERE s.name = 'peak_bytes_in_use') AS lifetime_peak_bytes,
    MAX(CASE WHEN e.name = 'MemoryAllocation' THEN 1 ELSE 0 END) AS is_allocation
  FROM main.host_events AS e
  INNER JOIN main.event_stats AS s USING (run_id, event_id)
  WHERE
    e.name IN ('MemoryAllocation', 'MemoryDeallocation')
    AND s.name IN (
      'allocator_name', 'index_on_host', 'bytes_allocated', 'bytes_reserved', 'bytes_available', 'peak_bytes_in_use'
    )
  GROUP BY run_id, e.host, e.event_id
)

SELECT
  run_id, host,
  event_id, -- The allocation or release.
  -- Name of the allocator; else the device's number on the host; NULL where neither is stated.
  COALESCE(allocator_name, CAST(index_on_host AS VARCHAR)) AS allocator,
  at_ps, -- When it happened, since the run's profile start.
  is_allocation, -- 1 for an allocation, 0 for a release.
  allocated_bytes, -- Bytes allocated.
  COALESCE(reserved_bytes, 0) AS reserved_bytes, -- Bytes reserved for the stacks of programs.
  allocated_bytes + COALESCE(reserved_bytes, 0) AS used_bytes, -- In use: allocated and reserved.
  -- In use or free; NULL where not known.
  allocated_bytes + COALESCE(reserved_bytes, 0) + available_bytes AS capacity_bytes,
  lifetime_peak_bytes -- Most allocated since the process began; NULL where not known.
FROM stated
WHERE allocated_bytes IS NOT NULL;

CREATE VIEW models.model_shapes AS WITH sizes AS (
  SELECT
    run_id,
    num_params_active AS params,
    has_tied_embeddings,
    COALESCE(num_params_embedding, CAST(vocab_size AS BIGINT) * hidden_size) AS embedding_params,
    COALESCE(CAST(vocab_size AS BIGINT) * hidden_size, num_params_embedding) AS head_params,
    CAST(num_layers AS BIGINT) * COALESCE(CAST(num_heads AS BIGINT) * head_dim, hidden_size) AS layers_width,
    CAST(batch_size AS BIGINT) AS sequences,
    CAST(input_length AS BIGINT) AS input_length,
    device_count + COALESCE(missing_devices, 0) AS devices,
    CASE
      WHEN LOWER(dtype) LIKE '%int8%' THEN 'int8'
      WHEN LOWER(dtype) LIKE '%fp8%' OR LOWER(dtype) LIKE '%float8%' OR LOWER(dtype) LIKE 'f8%' THEN 'fp8'
      ELSE 'bf16'
    END AS product_type
  FROM main.runs
)

SELECT
  run_id,
  -- Active parameters of the layers. The stated parameters include a head of its own, unless it counts as one of the tables.
  params - embedding_params
  - CASE WHEN has_tied_embeddings OR embedding_params >= 2 * head_params THEN 0 ELSE head_params END AS body_params,
  head_params, -- Parameters of the output head.
  layers_width, -- Layers times width of attention.
  sequences, -- Sequences of a step.
  input_length, -- Prompt tokens per sequence.
  devices, -- Devices of the run, including missing ones.
  product_type -- Type of matrix product that the run's dtype stands for: bf16, int8 or fp8.
FROM sizes;

CREATE VIEW models.step_tokens AS WITH batches AS (
  SELECT
    run_id, step, prefill_tokens, decode_tokens, min_kv_length,
    -- a request that decodes has one token
    CASE WHEN prefill_tokens > 0 THEN GREATEST(requests - decode_tokens, 1) ELSE 0 END AS prompts
  FROM main.step_batches
  WHERE step IS NOT NULL
),

attended AS (
  SELECT
    *,
    CASE WHEN decode_tokens > 0 THEN decode_tokens * min_kv_length ELSE 0 END AS decode_contexts,
    CASE WHEN prompts > 0 THEN (prefill_tokens * (prefill_tokens + prompts)) // (2 * prompts) END AS prefill_contexts
  FROM batches
)

SELECT
  run_id, step,
  CAST(SUM(prefill_tokens) AS BIGINT) AS prefill_tokens, -- Tokens of prompts.
  CAST(SUM(decode_tokens) AS BIGINT) AS decode_tokens, -- Tokens of requests that generate.
  -- Tokens whose logits are computed: one of each prompt, and those that decode; NULL where requests are not stated.
  CASE WHEN COUNT(prompts) = COUNT(*) THEN CAST(SUM(prompts + decode_tokens) AS BIGINT) END AS head_tokens,
  -- Sum over all tokens of the context that each attends to, at least; NULL where contexts are not stated.
  CASE
    WHEN COUNT(decode_contexts) = COUNT(*) AND COUNT(prompts) = COUNT(*)
      THEN CAST(SUM(decode_contexts + COALESCE(prefill_contexts, 0)) AS BIGINT)
  END AS contexts
FROM attended
GROUP BY run_id, step
HAVING COUNT(prefill_tokens) = COUNT(*) AND COUNT(decode_tokens) = COUNT(*);

CREATE VIEW models.communication_ops AS SELECT
  run_id,
  event_id, -- The op, a start or a done.
  kind, axis
FROM main.collectives
WHERE window_source <> 'fused op'
UNION ALL
SELECT run_id, done_event_id AS event_id, kind, axis
FROM main.collectives
WHERE done_event_id IS NOT NULL
UNION ALL
SELECT run_id, second_event_id AS event_id, kind, axis
FROM main.collectives
WHERE second_event_id IS NOT NULL
UNION ALL
SELECT run_id, second_done_event_id AS event_id, kind, axis
FROM main.collectives
WHERE second_done_event_id IS NOT NULL;

CREATE VIEW metrics.overlap_ratio_v1 AS SELECT
  run_id, phase, kind, axis,
  SUM(hidden_ps) / SUM(end_ps - start_ps) AS overlap_ratio, -- Hidden share.
  SUM(end_ps - start_ps) / 1e9 AS window_ms, -- Time of the windows together.
  SUM(exposed_ps) / 1e9 AS exposed_ms, -- Exposed time in them.
  SUM(end_ps - start_ps - exposed_ps - hidden_ps) / 1e9 AS idle_ms, -- Time in them in which the device runs nothing.
  -- How the windows were found - op, start/done pair, async line, start only - or mixed.
  CASE WHEN MIN(window_source) = MAX(window_source) THEN MIN(window_source) ELSE 'mixed' END AS window_source,
  COUNT(*) AS executions,
  COUNT(*) FILTER (WHERE is_async) AS async_executions -- Asynchronous ones among them.
FROM main.collectives
GROUP BY run_id, phase, kind, axis
HAVING SUM(end_ps - start_ps) > 0;

CREATE VIEW metrics.overlap_ratio AS SELECT run_id, phase, kind, axis, overlap_ratio, window_ms, exposed_ms, idle_ms, window_source, executions, async_executions FROM metrics.overlap_ratio_v1;

CREATE VIEW metrics.padding_waste_v1 AS SELECT
  run_id,
  -- prefill_only, prefill_heavy, balanced, decode_heavy, decode_only or ambiguous; NULL where the server does not say.
  kind,
  SUM(padded_tokens - scheduled_tokens) / SUM(padded_tokens) AS padding_share, -- Share that is padding.
  CAST(SUM(padded_tokens - scheduled_tokens) AS BIGINT) AS padding_tokens, -- Tokens of padding.
  CAST(SUM(scheduled_tokens) AS BIGINT) AS scheduled_tokens, -- Tokens that were scheduled.
  CAST(SUM(padded_tokens) AS BIGINT) AS computed_tokens, -- Tokens that were computed, padding included.
  COUNT(*) AS batches -- Batches that it covers.
FROM main.step_batches
WHERE padded_tokens > 0 AND scheduled_tokens IS NOT NULL
GROUP BY run_id, kind;

CREATE VIEW metrics.padding_waste AS SELECT run_id, kind, padding_share, padding_tokens, scheduled_tokens, computed_tokens, batches FROM metrics.padding_waste_v1;

CREATE VIEW models.prediction_times AS WITH leaves AS (
  SELECT run_id, phase, basis, device_id, step, duration_ps, low_ps, high_ps, is_extrapolated
  FROM main.ops
  WHERE is_leaf AND basis IS NOT NULL
),

executed AS (
  SELECT run_id, phase, COUNT(DISTINCT device_id) * COUNT(DISTINCT step) AS executions
  FROM leaves
  GROUP BY run_id, phase
)

SELECT
  l.run_id,
  l.phase, -- prefill or decode.
  l.basis, -- What the time rests on, as of ops.
  CAST(SUM(l.duration_ps) // e.executions AS BIGINT) AS time_ps, -- Time of a step's ops.
  CAST(SUM(l.low_ps) // e.executions AS BIGINT) AS low_ps, -- The same with each op at the low end of its range.
  CAST(SUM(l.high_ps) // e.executions AS BIGINT) AS high_ps, -- The same with each op at the high end.
  -- Part of time_ps for layers that were not compiled.
  CAST(COALESCE(SUM(l.duration_ps) FILTER (WHERE l.is_extrapolated), 0) // e.executions AS BIGINT) AS extrapolated_ps,
  COUNT(*) // e.executions AS ops -- Ops of a step.
FROM leaves AS l
INNER JOIN executed AS e ON l.run_id = e.run_id AND l.phase IS NOT DISTINCT FROM e.phase
GROUP BY l.run_id, l.phase, l.basis, e.executions;

CREATE VIEW models.run_chips AS WITH captured AS (
  SELECT run_id, MIN(kind) AS kind, COUNT(*) AS devices, COUNT(DISTINCT chip_id) + COUNT(*) - COUNT(chip_id) AS chips
  FROM main.devices
  GROUP BY run_id
)

SELECT
  run_id,
  c.kind, -- Kind of the devices; the first by name if there are several.
  c.devices + COALESCE(r.missing_devices, 0) AS devices, -- Devices of the run.
  (c.chips * (c.devices + COALESCE(r.missing_devices, 0)) + c.devices - 1) // c.devices AS chips -- Chips of the run.
FROM captured AS c
INNER JOIN main.runs AS r USING (run_id);

CREATE VIEW models.what_ifs AS WITH changed AS (
  SELECT
    run_id,
    MIN(ici_factor) AS ici_factor,
    MIN(hbm_factor) AS hbm_factor,
    MIN(host_ps) AS host_ps,
    MIN(kernels) AS kernels,
    MIN(chip_price_usd_per_h) AS chip_price_usd_per_h
  FROM main.predictions
  GROUP BY run_id
)

SELECT
  run_id,
  ici_factor, -- How many times as fast the links are.
  hbm_factor, -- How many times as fast the HBM is.
  host_ps, -- Time that the host adds to each step.
  kernels, -- Times of kernels in place of those of the rules, as JSON; NULL without any.
  chip_price_usd_per_h -- Price of a chip for an hour in place of the list price; NULL for that.
FROM changed
WHERE ici_factor <> 1 OR hbm_factor <> 1 OR host_ps <> 0 OR kernels IS NOT NULL OR chip_price_usd_per_h IS NOT NULL;

CREATE VIEW models.launched_runs AS SELECT run_id
FROM main.phases
WHERE kind = 'step' AND source = 'launches' AND device_id IS NOT NULL
GROUP BY run_id;

CREATE VIEW metrics.traffic_by_link_v1 AS WITH executed AS (
  SELECT run_id, phase, instruction_id, device_id, COUNT(*) AS executions
  FROM main.collectives
  GROUP BY run_id, phase, instruction_id, device_id
),

sent AS (
  SELECT
    e.run_id, e.phase, e.executions, t.bytes, CASE
      WHEN s.chip_id = d.chip_id THEN 'die'
      WHEN s.host = d.host OR s.link = 'ici' THEN s.link
      ELSE 'dcn'
    END AS link
  FROM executed AS e
  INNER JOIN main.traffic AS t
    ON e.run_id = t.run_id AND e.instruction_id = t.instruction_id AND e.device_id = t.source_device_id
  INNER JOIN main.devices AS s ON t.run_id = s.run_id AND t.source_device_id = s.device_id
  INNER JOIN main.devices AS d ON t.run_id = d.run_id AND t.target_device_id = d.device_id
),

carried AS (
  SELECT run_id, phase, link, executions * bytes AS sent_bytes, executions
  FROM sent
  UNION ALL
  SELECT run_id, phase, link, wire_bytes AS sent_bytes, 1 AS executions
  FROM main.collectives
  WHERE link = 'dcn' AND wire_bytes IS NOT NULL
),

summed AS (
  SELECT run_id, phase, link, SUM(sent_bytes) AS sent_bytes, SUM(executions) AS executions
  FROM carried
  GROUP BY run_id, phase, link
),

compared AS (
  SELECT
    *,
    SUM(sent_bytes) OVER (PARTITION BY run_id, phase) AS phase_bytes
  FROM summed
)

SELECT
  run_id, phase,
  -- die (devices of one chip), ici, nvlink, fabric (Infinity Fabric), or dcn (between slices, or hosts without ICI);
  -- NULL for virtual devices, and where not known.
  link,
  CAST(sent_bytes AS BIGINT) AS sent_bytes,
  sent_bytes / NULLIF(phase_bytes, 0) AS share, -- Share of the bytes of the phase.
  CAST(executions AS BIGINT) AS executions -- Executions, once for each pair of devices; of dcn, for each sender.
FROM compared;

CREATE VIEW metrics.traffic_by_link AS SELECT run_id, phase, link, sent_bytes, share, executions FROM metrics.traffic_by_link_v1;

CREATE VIEW models.traffic_intervals AS SELECT
  run_id, device_id,
  phase, -- Phase of both; NULL in a step without one, outside before the first and after the last.
  event_id, -- The collective that starts.
  -- Mesh axes of the previous collective: of those that started earlier, the one that ends last.
  previous_axis AS axis_from,
  axis AS axis_to,
  -- The two belong to different steps, or one of them to none.
  COALESCE(step <> previous_step, COALESCE(step, previous_step) IS NOT NULL) AS crosses_step,
  GREATEST(start_ps - previous_end_ps, 0) AS interval_ps, -- Time between them.
  start_ps < previous_end_ps AS is_overlapping -- The collective starts while another is under way.
FROM main.collectives
WHERE previous_end_ps IS NOT NULL AND phase IS NOT DISTINCT FROM previous_phase;

CREATE VIEW metrics.traffic_matrix_v1 AS WITH executed AS (
  SELECT run_id, phase, axis, kind, instruction_id, device_id, COUNT(*) AS executions
  FROM main.collectives
  GROUP BY run_id, phase, axis, kind, instruction_id, device_id
)

SELECT
  e.run_id, e.phase, e.axis, e.kind,
  t.source_device_id, -- The sender.
  t.target_device_id, -- The receiver.
  CAST(SUM(e.executions * t.bytes) AS BIGINT) AS sent_bytes,
  CAST(SUM(e.executions) AS BIGINT) AS executions -- Executions of collectives with traffic between the two.
FROM executed AS e
INNER JOIN main.traffic AS t
  ON e.run_id = t.run_id AND e.instruction_id = t.instruction_id AND e.device_id = t.source_device_id
GROUP BY e.run_id, e.phase, e.axis, e.kind, t.source_device_id, t.target_device_id;

CREATE VIEW metrics.traffic_matrix AS SELECT run_id, phase, axis, kind, source_device_id, target_device_id, sent_bytes, executions FROM metrics.traffic_matrix_v1;

CREATE VIEW metrics.unit_utilization_v1 AS WITH stated AS (
  SELECT
    run_id, host,
    CAST(NULL AS INTEGER) AS device_id,
    REGEXP_EXTRACT(name, '^(.*)_utilization_percent$', 1) AS hardware_unit,
    'plane' AS source,
    COALESCE(double_value, int_value) AS percent
  FROM main.plane_stats
  WHERE
    REGEXP_EXTRACT(name, '^(.*)_utilization_percent$', 1) <> ''
    AND COALESCE(double_value, int_value) IS NOT NULL
  UNION ALL
  SELECT
    run_id, host, device_id,
    REGEXP_EXTRACT(name, '^(.*): % util$', 1) AS hardware_unit,
    'samples' AS source,
    "value" AS percent
  FROM main.counters
  WHERE REGEXP_EXTRACT(name, '^(.*): % util$', 1) <> '' AND "value" IS NOT NULL
),

-- integers, whose sum does not depend on their order
scaled AS (
  SELECT *, CAST(FLOOR(percent * 1e9 + 5e-1) AS BIGINT) AS percent_billionths
  FROM stated
)

SELECT
  run_id, host,
  device_id, -- The device that is sampled; NULL for what a plane states.
  hardware_unit, -- Unit as the profiler names it, such as matrix_unit or MXU.
  -- Share of what the unit can do: the mean of the samples, or the largest where several planes state it.
  CASE
    WHEN source = 'samples' THEN SUM(percent_billionths) / (COUNT(*) * 1e11)
    ELSE MAX(percent) / 1e2
  END AS utilization,
  MAX(percent) / 1e2 AS highest, -- The largest of these.
  source, -- plane (of the whole capture) or samples.
  COUNT(*) AS readings -- Planes or samples.
FROM scaled
GROUP BY run_id, host, device_id, hardware_unit, source;

CREATE VIEW metrics.unit_utilization AS SELECT run_id, host, device_id, hardware_unit, utilization, highest, source, readings FROM metrics.unit_utilization_v1;

CREATE VIEW models.caveats AS WITH layers AS (
  SELECT run_id, layer, layer_confidence
  FROM main.instructions
  WHERE layer_source = 'inferred' AND layer IS NOT NULL
)

SELECT
  run_id,
  'flag' AS kind, -- flag (of main.quality_flags) or inferred.
  flag AS name, -- The flag, or what was inferred: an axis of the mesh (NULL if it has no name), or layers.
  CAST(NULL AS INTEGER) AS value, -- Size of the axis, or number of layers; NULL for a flag.
  CAST(NULL AS DOUBLE) AS confidence, -- How sure what was inferred is, from 0 to 1; NULL for a flag.
  host, -- The host that a flag is about; NULL for the whole run.
  detail -- The flag's sentence, or the reasons for what was inferred.
FROM main.quality_flags
UNION ALL
SELECT run_id, 'inferred' AS kind, axis AS name, size AS value, confidence, NULL AS host, evidence AS detail
FROM main.mesh_axes
WHERE source = 'inferred'
UNION ALL
SELECT
  run_id,
  'inferred' AS kind,
  'layers' AS name,
  CAST(MAX(layer) + 1 AS INTEGER) AS value,
  MIN(layer_confidence) AS confidence,
  NULL AS host,
  'from what repeats in the programs; as sure as the layer of the least sure instruction' AS detail
FROM layers
GROUP BY run_id;

CREATE VIEW models.instruction_classes AS WITH named AS (
  SELECT
    run_id, instruction_id, op_class, opcode, operand_dtype,
    opcode IS NULL OR opcode IN ('custom-call', 'fusion') AS is_kernel,
    LOWER(name) AS name,
    COALESCE(LOWER(category), '') AS category,
    COALESCE(LOWER(op_name), '') AS scope
  FROM main.instructions
)

SELECT
  run_id, -- The run.
  instruction_id, -- The HLO instruction.
  -- communication, copy, attention, matrix (a product or a fusion around one), or other compute.
  CASE
    WHEN op_class IN ('communication', 'copy') THEN op_class
    WHEN
      is_kernel
      AND (
        REGEXP_MATCHES(name, '(flash|paged|splash|ring)_?(attention|attn|mha|mqa|fwd|mla)|fmha|attn_fwd')
        OR REGEXP_MATCHES(name, '(^|[ /_])(rpa|mha|mla)([-_. ]|$)')
        OR category = 'attention'
      )
      THEN 'attention'
    WHEN
      opcode = 'custom-call'
      AND REGEXP_MATCHES(scope, '(flash|paged|splash|ring)_?(attention|attn|mha|mqa|fwd|mla)|fmha|attn_fwd')
      THEN 'attention'
    WHEN REGEXP_MATCHES(scope, '(^|/)(scaled_)?dot_product_attention') THEN 'attention'
    WHEN
      operand_dtype IS NOT NULL
      OR opcode IN ('dot', 'convolution', 'ragged-dot')
      OR (is_kernel AND REGEXP_MATCHES(name, 'convolution|dot|gemm|matmul|cublas|nvjet|cijk_|bmm_mx'))
      OR (is_kernel AND REGEXP_MATCHES(category, 'convolution|dot|gemm|matmul'))
      OR (
        REGEXP_MATCHES(scope, '/dot_general$')
        AND (category = 'custom fusion' OR (opcode = 'fusion' AND STARTS_WITH(name, 'multiply_reduce')))
      )
      THEN 'matrix'
    ELSE 'other compute'
  END AS class
FROM named;

CREATE VIEW models.instruction_layers AS SELECT
  run_id, i.instruction_id, d.device_id,
  -- Transformer layer, in a loop over layers that of the first iteration; NULL if unknown, and in a slot that only other
  -- stages fill.
  CASE
    WHEN i.layer IS NOT NULL THEN i.layer
    WHEN i.loop_layer IS NOT NULL AND COALESCE(r.pp, 1) = 1 THEN i.loop_layer
    WHEN i.loop_layer IS NOT NULL AND d.first_layer IS NOT NULL THEN d.first_layer + i.loop_layer
    WHEN i.loop_layer IS NOT NULL AND r.num_layers % NULLIF(r.pp, 0) = 0
      THEN d.pp_index * (r.num_layers // NULLIF(r.pp, 0)) + i.loop_layer
    WHEN d.first_slot IS NOT NULL
      THEN CASE
        WHEN i.stage_layer BETWEEN d.first_slot AND d.first_slot + d.last_layer - d.first_layer
          THEN d.first_layer + i.stage_layer - d.first_slot
      END
    WHEN r.num_layers % NULLIF(r.pp, 0) = 0 THEN d.pp_index * (r.num_layers // NULLIF(r.pp, 0)) + i.stage_layer
  END AS first_layer,
  i.layers_per_iteration, -- How many layers further it is in each iteration; NULL outside of loops over layers.
  d.pp_index AS stage, -- Pipeline stage of the device; NULL without a pipeline, or if the mesh is unknown.
  i.stage_layer, -- Slot of the layer in the program of all stages; NULL if the program has no slots.
  i.tick, -- Tick of the schedule; NULL outside of ticks.
  -- Microbatch that the stage works on; NULL outside of ticks, and in ticks in which the stage has none because the
  -- pipeline fills or drains.
  CASE WHEN i.tick >= d.pp_index AND i.tick - d.pp_index < r.microbatches THEN i.tick - d.pp_index END AS microbatch,
  i.part
FROM main.instructions AS i
INNER JOIN main.devices AS d USING (run_id)
LEFT JOIN main.runs AS r USING (run_id);

CREATE VIEW models.provenance AS WITH flags AS (
  SELECT run_id, COUNT(*) AS flags
  FROM main.quality_flags
  GROUP BY run_id
)

SELECT
  r.run_id,
  r.name, -- Its name.
  r.origin, -- recorded, compiled (a program that did not run) or predicted.
  r.format, -- Format of its capture.
  r.source_digest, -- Digest of the files of its capture.
  r.source_bytes, -- Size of these files.
  r.profile_start_ns, -- Start of the profile, in Unix nanoseconds.
  r.framework, -- Framework that recorded it.
  r.ingest_version, -- Version of tracewarehouse that read it.
  r.schema_version, -- Version of the tables.
  COALESCE(f.flags, 0) AS flags -- Number of its quality flags; main.quality_flags has them.
FROM main.runs AS r
LEFT JOIN flags AS f USING (run_id);

CREATE VIEW models.rank_overlap AS WITH clocks AS (
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
GROUP BY run_id, instruction_id, kind;

CREATE VIEW preconditions.accelerators AS SELECT run_id FROM main.runs WHERE backend <> 'cpu';

CREATE VIEW preconditions.allocations AS SELECT e.run_id FROM main.host_events AS e INNER JOIN main.event_stats AS s USING (run_id, event_id) WHERE e.name IN ('MemoryAllocation', 'MemoryDeallocation') AND s.name = 'bytes_allocated' AND s.int_value IS NOT NULL;

CREATE VIEW preconditions.any_collective AS SELECT run_id FROM main.collectives;

CREATE VIEW preconditions.any_copy AS SELECT run_id FROM main.instructions WHERE op_class = 'copy';

CREATE VIEW preconditions.async_copies AS SELECT run_id FROM main.instructions WHERE op_class = 'copy' AND async_role = 'start';

CREATE VIEW preconditions.async_copy_bytes AS SELECT run_id FROM main.instructions WHERE op_class = 'copy' AND async_role = 'start' AND bytes_accessed > 0;

CREATE VIEW preconditions.attributed_collectives AS SELECT run_id FROM main.collectives WHERE instance IS NOT NULL GROUP BY run_id, instance HAVING COUNT(*) FILTER (WHERE is_partial AND link IS DISTINCT FROM 'dcn') = 0;

CREATE VIEW preconditions.collective_in_slice AS SELECT run_id FROM main.collectives WHERE link IS DISTINCT FROM 'dcn';

CREATE VIEW preconditions.consecutive_collectives AS SELECT run_id FROM main.collectives GROUP BY run_id, device_id, phase HAVING COUNT(*) > 1;

CREATE VIEW preconditions.device_ops AS SELECT run_id FROM main.ops WHERE is_leaf AND device_id IS NOT NULL;

CREATE VIEW preconditions.device_programs AS SELECT run_id FROM main.ops WHERE is_leaf AND device_id IS NOT NULL UNION ALL SELECT run_id FROM main.runs WHERE origin = 'compiled';

CREATE VIEW preconditions.experts AS SELECT run_id FROM main.instructions WHERE part = 'moe';

CREATE VIEW preconditions.inter_chip_links AS SELECT run_id FROM main.runs WHERE backend <> 'gpu';

CREATE VIEW preconditions.known_throughput AS SELECT run_id FROM main.metric_values WHERE metric = 'throughput';

CREATE VIEW preconditions.known_traffic AS SELECT run_id FROM main.traffic;

CREATE VIEW preconditions.lasting_collectives AS SELECT run_id FROM main.collectives WHERE end_ps > start_ps;

CREATE VIEW preconditions.layers AS SELECT run_id FROM main.instructions WHERE COALESCE(layer, stage_layer, loop_layer) IS NOT NULL OR part IS NOT NULL;

CREATE VIEW preconditions.lengths AS SELECT run_id FROM main.runs WHERE input_length IS NOT NULL AND output_length IS NOT NULL;

CREATE VIEW preconditions.link_peak AS SELECT run_id FROM main.devices WHERE peak_ici_gbps > 0;

CREATE VIEW preconditions.link_traffic AS SELECT run_id FROM main.traffic UNION ALL SELECT run_id FROM main.collectives WHERE link = 'dcn' AND wire_bytes IS NOT NULL;

CREATE VIEW preconditions.matrix_peak AS SELECT run_id FROM main.devices WHERE peak_flops_per_s > 0;

CREATE VIEW preconditions.memory_traffic AS SELECT run_id FROM main.instructions WHERE COALESCE(given_bytes_accessed, bytes_accessed) > 0 UNION ALL SELECT run_id FROM main.ops WHERE bytes_accessed > 0;

CREATE VIEW preconditions.message_bytes AS SELECT run_id FROM main.collectives WHERE message_bytes IS NOT NULL;

CREATE VIEW preconditions.microbenchmark_programs AS SELECT run_id FROM main.instructions WHERE module LIKE 'jit_micro.%';

CREATE VIEW preconditions.model_name AS SELECT run_id FROM main.runs WHERE model IS NOT NULL;

CREATE VIEW preconditions.model_shape AS SELECT run_id FROM main.runs WHERE num_params_active IS NOT NULL AND num_layers IS NOT NULL AND (num_params_embedding IS NOT NULL OR vocab_size IS NOT NULL AND hidden_size IS NOT NULL) AND (num_heads IS NOT NULL AND head_dim IS NOT NULL OR hidden_size IS NOT NULL);

CREATE VIEW preconditions.op_costs AS SELECT run_id FROM main.instructions WHERE COALESCE(given_flops, flops) > 0 OR COALESCE(given_bytes_accessed, bytes_accessed) > 0 UNION ALL SELECT run_id FROM main.ops WHERE flops > 0 OR bytes_accessed > 0;

CREATE VIEW preconditions.padded_batches AS SELECT run_id FROM main.step_batches WHERE padded_tokens > 0 AND scheduled_tokens IS NOT NULL;

CREATE VIEW preconditions.paired_copies AS SELECT run_id FROM main.instructions AS s INNER JOIN main.instructions AS d USING (run_id) WHERE s.op_class = 'copy' AND s.async_role = 'start' AND d.async_role = 'done' AND s.name = d.async_start AND s.program_id IS NOT DISTINCT FROM d.program_id;

CREATE VIEW preconditions.pipeline AS SELECT run_id FROM main.runs WHERE pp > 1;

CREATE VIEW preconditions.pipeline_transfers AS SELECT run_id FROM main.collectives WHERE axis = 'pp' AND step IS NOT NULL;

CREATE VIEW preconditions.predicted AS SELECT run_id FROM main.predictions;

CREATE VIEW preconditions.product_costs AS SELECT run_id FROM main.instructions WHERE operand_dtype IS NOT NULL AND COALESCE(given_flops, NULLIF(model_flops, 0), flops) > 0 UNION ALL SELECT run_id FROM main.ops AS o INNER JOIN main.instructions AS i USING (run_id, instruction_id) WHERE i.operand_dtype IS NOT NULL AND (o.model_flops > 0 OR o.flops > 0);

CREATE VIEW preconditions.ranks_to_compare AS SELECT run_id FROM main.collectives WHERE instance IS NOT NULL GROUP BY run_id, instance HAVING COUNT(*) > 1 OR COUNT(*) FILTER (WHERE is_partial) = 0;

CREATE VIEW preconditions.recorded AS SELECT run_id FROM main.runs WHERE origin = 'recorded';

CREATE VIEW preconditions.repeated_launches AS SELECT run_id FROM main.phases WHERE kind = 'module' AND device_id IS NOT NULL GROUP BY run_id, device_id HAVING COUNT(*) > 1;

CREATE VIEW preconditions.sent_bytes AS SELECT run_id FROM main.collectives WHERE instance IS NOT NULL AND link IS DISTINCT FROM 'dcn' AND (wire_bytes > 0 OR is_partial AND message_bytes > 0);

CREATE VIEW preconditions.separate_collectives AS SELECT run_id FROM main.collectives WHERE window_source <> 'fused op';

CREATE VIEW preconditions.several_devices AS SELECT run_id FROM main.ops WHERE is_leaf AND device_id IS NOT NULL GROUP BY run_id HAVING MIN(device_id) < MAX(device_id);

CREATE VIEW preconditions.several_ranks AS SELECT run_id FROM main.collectives WHERE instance IS NOT NULL GROUP BY run_id, instance HAVING COUNT(*) > 1;

CREATE VIEW preconditions.single_rank AS SELECT run_id FROM main.step_batches GROUP BY run_id HAVING MIN("rank") = MAX("rank");

CREATE VIEW preconditions.stated_collectives AS SELECT r.run_id FROM main.runs AS r LEFT JOIN main.quality_flags AS f ON r.run_id = f.run_id AND f.flag = 'kernel_communication' WHERE f.run_id IS NULL UNION ALL SELECT run_id FROM main.collectives;

CREATE VIEW preconditions.timed AS SELECT run_id FROM main.runs WHERE origin <> 'compiled';

CREATE VIEW preconditions.timed_ops AS SELECT run_id FROM main.ops WHERE is_leaf AND device_id IS NOT NULL AND self_ps > 0;

CREATE VIEW preconditions.transfer_bytes AS SELECT run_id FROM main.collectives WHERE instance IS NOT NULL AND NOT is_partial AND message_bytes > 0 AND group_size > 1;

CREATE VIEW preconditions.unit_counters AS SELECT run_id FROM main.plane_stats WHERE REGEXP_EXTRACT(name, '^(.*)_utilization_percent$', 1) <> '' AND COALESCE(double_value, int_value) IS NOT NULL UNION ALL SELECT run_id FROM main.counters WHERE REGEXP_EXTRACT(name, '^(.*): % util$', 1) <> '' AND "value" IS NOT NULL;

CREATE VIEW preconditions.whole_collectives AS SELECT run_id FROM main.collectives WHERE instance IS NOT NULL GROUP BY run_id, instance HAVING COUNT(*) FILTER (WHERE is_partial) = 0;

CREATE VIEW models.ccl_copies AS WITH halves AS (
  SELECT
    run_id, event_id, is_tpu,
    NULLIF(REGEXP_EXTRACT(name, 'copy-start[.]([0-9]+)', 1), '') AS start_number,
    NULLIF(REGEXP_EXTRACT(name, 'copy-done[.]([0-9]+)', 1), '') AS done_number,
    device_offset_ps AS offset_ps,
    copied_bytes AS bytes
  FROM models.ccl_events
  WHERE device_offset_ps IS NOT NULL AND name LIKE '%copy-%'
),

-- once for the bandwidth, which ignores a start without bytes, and once for the overhead, which counts only TPUs
used AS (
  SELECT
    run_id, event_id,
    'bandwidth' AS purpose,
    COALESCE(start_number, done_number) AS number,
    start_number IS NOT NULL AS is_start,
    offset_ps, bytes
  FROM halves
  WHERE (start_number IS NOT NULL AND bytes IS NOT NULL) OR (start_number IS NULL AND done_number IS NOT NULL)
  UNION ALL
  SELECT
    run_id, event_id,
    'overhead' AS purpose,
    COALESCE(start_number, done_number) AS number,
    start_number IS NOT NULL AS is_start,
    offset_ps, bytes
  FROM halves
  WHERE is_tpu AND (start_number IS NOT NULL OR done_number IS NOT NULL)
),

paired AS (
  SELECT
    run_id, purpose, event_id, is_start,
    offset_ps AS end_offset_ps,
    LAG(CASE WHEN is_start THEN offset_ps END) OVER (PARTITION BY run_id, purpose, number ORDER BY event_id)
      AS start_offset_ps,
    LAG(bytes) OVER (PARTITION BY run_id, purpose, number ORDER BY event_id) AS bytes
  FROM used
)

SELECT
  run_id,
  purpose, -- bandwidth or overhead, which pair by slightly different rules.
  event_id, -- The done half.
  start_offset_ps, -- Start of the start half on the device's own clock.
  end_offset_ps, -- Start of the done half on the device's own clock.
  bytes -- Memory traffic of the start half.
FROM paired
WHERE NOT is_start AND end_offset_ps > start_offset_ps;

CREATE VIEW metrics.ccl_coll_call_num_v1 AS WITH files AS (
  SELECT run_id, host
  FROM main.hosts
  WHERE REGEXP_MATCHES(file_name, '^kineto_trace_0\.json(\.gz)?$')
),

counted AS (
  SELECT run_id, COUNT(*) AS calls
  FROM models.ccl_kernels AS k
  INNER JOIN files USING (run_id, host)
  WHERE REGEXP_MATCHES(k.name, '^ncclDevKernel_(AllReduce|ReduceScatter|AllGather|Broadcast|Reduce|SendRecv)')
  GROUP BY run_id
)

SELECT
  run_id,
  COALESCE(c.calls, 0) AS calls -- Kernels of the first rank.
FROM main.runs AS r
LEFT JOIN counted AS c USING (run_id)
WHERE r.format IN ('kineto', 'nsys');

CREATE VIEW metrics.ccl_coll_call_num AS SELECT run_id, calls FROM metrics.ccl_coll_call_num_v1;

CREATE VIEW metrics.ccl_communication_fraction_v1 AS WITH processes AS (
  SELECT
    run_id, host, plane, device_id,
    SUM(mixed_duration) AS total,
    SUM(
      CASE
        WHEN LOWER(category) IN (
          'all-reduce', 'allreduce', 'all_reduce', 'all-gather', 'allgather', 'all_gather', 'all-to-all', 'alltoall',
          'reduce-scatter', 'reducescatter', 'reduce_scatter', 'collective-permute', 'collective-permute-start',
          'collective-permute-done', 'send', 'recv', 'broadcast'
        ) OR LOWER(name) IN (
          'all-reduce', 'allreduce', 'all_reduce', 'all-gather', 'allgather', 'all_gather', 'all-to-all', 'alltoall',
          'reduce-scatter', 'reducescatter', 'reduce_scatter', 'collective-permute', 'collective-permute-start',
          'collective-permute-done', 'send', 'recv', 'broadcast'
        ) THEN mixed_duration
        ELSE 0
      END
    ) AS communication
  FROM models.ccl_events
  WHERE counts AND mixed_duration > 0
  GROUP BY run_id, host, plane, device_id
),

kernels AS (
  SELECT
    run_id, is_nsys, host, start_ps, end_ps, duration_ps,
    CASE
      WHEN REGEXP_MATCHES(
        lower_name,
        'nccl|allreduce|allgather|broadcast|send|recv|p2p|cross_device|communicate|all_reduce|all_gather|reducescatter'
      ) OR (NOT is_nsys AND REGEXP_MATCHES(lower_name, 'cross-?device|reduce_scatter')) THEN duration_ps
      ELSE 0
    END AS communication_ps
  FROM models.ccl_kernels
),

steps AS (
  SELECT run_id, host, event_id, start_ps, start_ps + duration_ps AS end_ps
  FROM models.ccl_marks
  WHERE kind = 'profiler step' AND (places <= 2 OR (place > 1 AND place < places))
),

-- kernels that overlap a step are those that start before its end, without those that have ended at its start
moments AS (
  SELECT
    run_id, host,
    NULL AS event_id,
    start_ps AS at_ps,
    'start' AS what,
    duration_ps, communication_ps
  FROM kernels
  UNION ALL
  SELECT
    run_id, host,
    NULL AS event_id,
    end_ps AS at_ps,
    'end' AS what,
    duration_ps, communication_ps
  FROM kernels
  UNION ALL
  SELECT
    run_id, host, event_id,
    start_ps AS at_ps,
    'mark' AS what,
    0 AS duration_ps,
    0 AS communication_ps
  FROM steps
  UNION ALL
  SELECT
    run_id, host, event_id,
    end_ps AS at_ps,
    'mark' AS what,
    0 AS duration_ps,
    0 AS communication_ps
  FROM steps
),

so_far AS (
  SELECT
    run_id, host, event_id,
    SUM(CASE WHEN what = 'start' THEN duration_ps ELSE 0 END) OVER earlier AS started_ps,
    SUM(CASE WHEN what = 'start' THEN communication_ps ELSE 0 END) OVER earlier AS started_communication_ps,
    SUM(CASE WHEN what = 'end' THEN duration_ps ELSE 0 END) OVER earlier AS ended_ps,
    SUM(CASE WHEN what = 'end' THEN communication_ps ELSE 0 END) OVER earlier AS ended_communication_ps
  FROM moments
  -- at one time an end comes before a mark and a mark before a start, as their names do
  WINDOW earlier AS (
    PARTITION BY run_id, host ORDER BY at_ps, what, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  )
),

of_steps AS (
  SELECT
    run_id, host, event_id,
    MAX(started_ps) - MIN(ended_ps) AS total_ps,
    MAX(started_communication_ps) - MIN(ended_communication_ps) AS communication_ps
  FROM so_far
  WHERE event_id IS NOT NULL
  GROUP BY run_id, host, event_id
  HAVING MAX(started_ps) > MIN(ended_ps)
),

step_shares AS (
  SELECT run_id, host, CAST(FLOOR(communication_ps / total_ps * 1e15 + 5e-1) AS BIGINT) AS units
  FROM of_steps
),

whole AS (
  SELECT
    run_id,
    CASE WHEN is_nsys THEN '' ELSE host END AS host,
    SUM(duration_ps) AS total_ps,
    SUM(communication_ps) AS communication_ps
  FROM kernels
  GROUP BY run_id, CASE WHEN is_nsys THEN '' ELSE host END
),

marked AS (
  SELECT run_id, host, COUNT(*) AS steps
  FROM steps
  GROUP BY run_id, host
),

of_ranks AS (
  SELECT run_id, host, CAST(FLOOR(SUM(units) / COUNT(*) + 5e-1) AS BIGINT) AS units
  FROM step_shares
  GROUP BY run_id, host
  UNION ALL
  SELECT run_id, host, CAST(FLOOR(w.communication_ps / w.total_ps * 1e15 + 5e-1) AS BIGINT) AS units
  FROM whole AS w
  LEFT JOIN marked AS k USING (run_id, host)
  WHERE k.steps IS NULL AND w.total_ps > 0
),

shares AS (
  SELECT run_id, CAST(FLOOR(communication / total * 1e15 + 5e-1) AS BIGINT) AS units
  FROM processes
)

SELECT
  run_id,
  SUM(units) / (1e13 * COUNT(*)) AS fraction_percent, -- Mean share in percent.
  COUNT(*) AS devices -- Processes covered.
FROM shares
GROUP BY run_id
UNION ALL
SELECT run_id, SUM(units) / (1e13 * COUNT(*)) AS fraction_percent, COUNT(*) AS devices
FROM of_ranks
GROUP BY run_id;

CREATE VIEW metrics.ccl_communication_fraction AS SELECT run_id, fraction_percent, devices FROM metrics.ccl_communication_fraction_v1;

CREATE VIEW metrics.ccl_compute_comm_overlap_v1 AS WITH candidates AS (
  SELECT
    run_id, event_id, name, start_ps, duration_ps,
    MIN(name) OVER (PARTITION BY run_id) AS used_name,
    MAX(duration_ps) OVER (PARTITION BY run_id, name) AS longest_ps
  FROM models.ccl_events
  WHERE name IN ('$core.py:331 step', 'StepMarker')
),

ranked AS (
  SELECT
    run_id, start_ps,
    start_ps + duration_ps AS end_ps,
    ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY start_ps, event_id) AS place,
    COUNT(*) OVER (PARTITION BY run_id) AS places
  FROM candidates
  WHERE name = used_name AND (name <> 'StepMarker' OR duration_ps * 10 > longest_ps)
),

counted AS (
  SELECT run_id, start_ps, end_ps
  FROM ranked
  WHERE places <= 2 OR (place > 1 AND place < places)
),

stepped AS (
  SELECT run_id, COUNT(*) AS steps
  FROM counted
  GROUP BY run_id
),

-- a run without a step has no row, and its events need no sweep
events AS (
  SELECT run_id, e.name, e.start_ps, e.start_ps + e.duration_ps AS end_ps
  FROM models.ccl_events AS e
  INNER JOIN stepped USING (run_id)
),

names AS (
  SELECT run_id, name
  FROM events
  GROUP BY run_id, name
),

sorted_names AS (
  SELECT
    run_id, name,
    REGEXP_MATCHES(
      LOWER(name),
      'nccl|all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|cross[-_]?device|sendrecv|collective'
    ) AS is_communication,
    REGEXP_MATCHES(LOWER(name), 'dot|convolution|gemm|matmul|fusion|compute|custom-call') AS has_compute_word
  FROM names
),

classed AS (
  SELECT run_id, v.start_ps, v.end_ps, k.is_communication, NOT k.is_communication AS is_compute
  FROM events AS v
  INNER JOIN sorted_names AS k USING (run_id, name)
  WHERE k.is_communication OR k.has_compute_word
),

points AS (
  SELECT run_id, start_ps AS at_ps, 1 AS steps, 0 AS communications, 0 AS computes
  FROM counted
  UNION ALL
  SELECT run_id, end_ps AS at_ps, -1 AS steps, 0 AS communications, 0 AS computes
  FROM counted
  UNION ALL
  SELECT
    run_id,
    start_ps AS at_ps,
    0 AS steps,
    CASE WHEN is_communication THEN 1 ELSE 0 END AS communications,
    CASE WHEN is_compute THEN 1 ELSE 0 END AS computes
  FROM classed
  UNION ALL
  SELECT
    run_id,
    end_ps AS at_ps,
    0 AS steps,
    CASE WHEN is_communication THEN -1 ELSE 0 END AS communications,
    CASE WHEN is_compute THEN -1 ELSE 0 END AS computes
  FROM classed
),

moments AS (
  SELECT run_id, at_ps, SUM(steps) AS steps, SUM(communications) AS communications, SUM(computes) AS computes
  FROM points
  GROUP BY run_id, at_ps
),

swept AS (
  SELECT
    run_id,
    LEAD(at_ps) OVER (PARTITION BY run_id ORDER BY at_ps) - at_ps AS length_ps,
    SUM(steps) OVER so_far AS steps,
    SUM(communications) OVER so_far AS communications,
    SUM(computes) OVER so_far AS computes
  FROM moments
  WINDOW so_far AS (PARTITION BY run_id ORDER BY at_ps ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),

summed AS (
  SELECT
    run_id,
    SUM(length_ps * steps) AS communication_ps,
    COALESCE(SUM(length_ps * steps) FILTER (WHERE computes > 0), 0) AS overlap_ps
  FROM swept
  WHERE steps > 0 AND communications > 0
  GROUP BY run_id
),

kernels AS (
  SELECT
    run_id, is_nsys,
    CASE WHEN is_nsys THEN CAST(device_id AS VARCHAR) ELSE host END AS place,
    start_ps, end_ps,
    REGEXP_MATCHES(
      lower_name,
      'nccl|all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|broadcast|cross[-_]?device|sendrecv'
    ) OR REGEXP_MATCHES(lower_name, 'collective') AS is_communication
  FROM models.ccl_kernels
),

marks AS (
  SELECT run_id, host AS place, start_ps, start_ps + duration_ps AS end_ps
  FROM models.ccl_marks
  WHERE choice = 1 AND (places <= 2 OR (place > 1 AND place < places))
  UNION ALL
  SELECT run_id, place, MIN(start_ps) AS start_ps, MAX(end_ps) AS end_ps
  FROM kernels
  WHERE is_nsys
  GROUP BY run_id, place
),

edges AS (
  SELECT run_id, place, start_ps AS at_ps, 1 AS marks, 0 AS communications, 0 AS computes
  FROM marks
  UNION ALL
  SELECT run_id, place, end_ps AS at_ps, -1 AS marks, 0 AS communications, 0 AS computes
  FROM marks
  UNION ALL
  SELECT
    run_id, place,
    start_ps AS at_ps,
    0 AS marks,
    CASE WHEN is_communication THEN 1 ELSE 0 END AS communications,
    CASE WHEN is_communication THEN 0 ELSE 1 END AS computes
  FROM kernels
  UNION ALL
  SELECT
    run_id, place,
    end_ps AS at_ps,
    0 AS marks,
    CASE WHEN is_communication THEN -1 ELSE 0 END AS communications,
    CASE WHEN is_communication THEN 0 ELSE -1 END AS computes
  FROM kernels
),

turns AS (
  SELECT
    run_id, place, at_ps,
    SUM(marks) AS marks, SUM(communications) AS communications, SUM(computes) AS computes
  FROM edges
  GROUP BY run_id, place, at_ps
),

passed AS (
  SELECT
    run_id, place,
    LEAD(at_ps) OVER (PARTITION BY run_id, place ORDER BY at_ps) - at_ps AS length_ps,
    SUM(marks) OVER earlier AS marks,
    SUM(communications) OVER earlier AS communications,
    SUM(computes) OVER earlier AS computes
  FROM turns
  WINDOW earlier AS (PARTITION BY run_id, place ORDER BY at_ps ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),

of_places AS (
  SELECT
    run_id, place,
    SUM(length_ps * marks) AS communication_ps,
    COALESCE(SUM(length_ps * marks) FILTER (WHERE computes > 0), 0) AS overlap_ps
  FROM passed
  WHERE marks > 0 AND communications > 0
  GROUP BY run_id, place
  HAVING SUM(length_ps * marks) > 0
),

shares AS (
  SELECT
    run_id, place, communication_ps, overlap_ps,
    CAST(FLOOR(overlap_ps / communication_ps * 1e15 + 5e-1) AS BIGINT) AS units
  FROM of_places
),

marked AS (
  SELECT run_id, COUNT(*) AS steps
  FROM marks
  GROUP BY run_id
),

of_runs AS (
  SELECT
    run_id,
    CASE
      WHEN r.format = 'nsys' THEN SUM(p.overlap_ps) * 100 / SUM(p.communication_ps)
      ELSE SUM(p.units) / (1e13 * COUNT(*))
    END AS overlap_percent,
    SUM(p.communication_ps) AS communication_ps
  FROM shares AS p
  INNER JOIN main.runs AS r USING (run_id)
  GROUP BY run_id, r.format
)

SELECT
  run_id,
  u.overlap_ps * 100 / u.communication_ps AS overlap_percent, -- Share of the communication in percent.
  u.communication_ps / 1e9 AS communication_ms, -- Time with communication in the steps.
  n.steps -- Steps that count.
FROM summed AS u
INNER JOIN stepped AS n USING (run_id)
WHERE u.communication_ps > 0
UNION ALL
SELECT run_id, g.overlap_percent, g.communication_ps / 1e9 AS communication_ms, k.steps
FROM of_runs AS g
INNER JOIN marked AS k USING (run_id);

CREATE VIEW metrics.ccl_compute_comm_overlap AS SELECT run_id, overlap_percent, communication_ms, steps FROM metrics.ccl_compute_comm_overlap_v1;

CREATE VIEW metrics.ccl_dominant_kernel_concentration_v1 AS WITH categories AS (
  SELECT
    run_id, category,
    SUM(mixed_duration) AS of_category,
    SUM(COALESCE(device_duration_ps, duration_ps)) AS category_ps
  FROM models.ccl_events
  WHERE counts AND category <> '' AND mixed_duration > 0
  GROUP BY run_id, category
),

kernels AS (
  SELECT run_id, name, SUM(duration_ps) AS kernel_ps
  FROM models.ccl_kernels
  GROUP BY run_id, name
)

SELECT
  run_id,
  MAX(of_category) * 100 / SUM(of_category) AS share_percent, -- Largest share in percent.
  SUM(category_ps) / 1e9 AS total_ms -- Duration of all events with a category.
FROM categories
GROUP BY run_id
UNION ALL
SELECT run_id, MAX(kernel_ps) * 100 / SUM(kernel_ps) AS share_percent, SUM(kernel_ps) / 1e9 AS total_ms
FROM kernels
GROUP BY run_id
HAVING SUM(kernel_ps) > 0;

CREATE VIEW metrics.ccl_dominant_kernel_concentration AS SELECT run_id, share_percent, total_ms FROM metrics.ccl_dominant_kernel_concentration_v1;

CREATE VIEW metrics.ccl_load_imbalance_ratio_v1 AS WITH kernels AS (
  SELECT
    run_id,
    CASE WHEN is_nsys THEN CAST(device_id AS VARCHAR) ELSE host END AS place,
    event_id, start_ps, end_ps
  FROM models.ccl_kernels
),

covered AS (
  SELECT
    run_id, place, start_ps, end_ps,
    MAX(end_ps) OVER (
      PARTITION BY run_id, place ORDER BY start_ps, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS covered_until_ps
  FROM kernels
),

active AS (
  SELECT
    run_id, place,
    SUM(GREATEST(end_ps - GREATEST(start_ps, COALESCE(covered_until_ps, start_ps)), 0)) AS active_ps
  FROM covered
  GROUP BY run_id, place
)

SELECT
  run_id,
  MAX(active_ps) / MIN(active_ps) AS ratio, -- Largest over smallest time.
  COUNT(*) AS devices -- Files, or devices of an export of Nsight Systems.
FROM active
GROUP BY run_id
HAVING COUNT(*) > 1 AND MIN(active_ps) > 0;

CREATE VIEW metrics.ccl_load_imbalance_ratio AS SELECT run_id, ratio, devices FROM metrics.ccl_load_imbalance_ratio_v1;

CREATE VIEW metrics.ccl_mean_sm_coverage_v1 AS WITH stated AS (
  SELECT run_id, event_id, MAX(COALESCE(double_value, int_value, CAST(string_value AS DOUBLE))) AS blocks
  FROM main.event_stats
  WHERE name = 'blocks per SM'
  GROUP BY run_id, event_id
),

kernels AS (
  SELECT
    run_id,
    k.duration_ps // 1000 AS duration_ns,
    -- in units of 1e-9, so that the sum is exact
    CAST(FLOOR(CASE WHEN s.blocks < 1 THEN s.blocks ELSE 1 END * 1e9 + 5e-1) AS BIGINT) AS units
  FROM models.ccl_kernels AS k
  INNER JOIN stated AS s USING (run_id, event_id)
  WHERE NOT k.is_nsys
)

SELECT
  run_id,
  SUM(units * duration_ns) / (SUM(duration_ns) * 1e7) AS coverage_percent, -- Mean share in percent.
  COUNT(*) AS kernels -- Kernels covered.
FROM kernels
GROUP BY run_id
HAVING SUM(duration_ns) > 0;

CREATE VIEW metrics.ccl_mean_sm_coverage AS SELECT run_id, coverage_percent, kernels FROM metrics.ccl_mean_sm_coverage_v1;

CREATE VIEW metrics.ccl_moe_fraction_v1 AS WITH kernels AS (
  SELECT
    run_id, duration_ps,
    REGEXP_MATCHES(lower_name, 'moe|expert|routing|gating|dispatchkernel|combinekernel')
    OR (NOT is_nsys AND REGEXP_MATCHES(lower_name, 'gate_|topk|grouped_gemm|dispatch|combine'))
    OR (is_nsys AND REGEXP_MATCHES(lower_name, '(^|[^a-z0-9_])(gate|topk)($|[^a-z0-9_])')) AS is_moe
  FROM models.ccl_kernels
)

SELECT
  run_id,
  -- Share in percent.
  COALESCE(SUM(duration_ps) FILTER (WHERE is_moe), 0) * 100 / SUM(duration_ps) AS fraction_percent,
  COUNT(*) FILTER (WHERE is_moe) AS kernels -- Kernels with such a word.
FROM kernels
GROUP BY run_id
HAVING SUM(duration_ps) > 0;

CREATE VIEW metrics.ccl_moe_fraction AS SELECT run_id, fraction_percent, kernels FROM metrics.ccl_moe_fraction_v1;

CREATE VIEW metrics.ccl_straggler_v1 AS WITH files AS (
  SELECT run_id, host
  FROM main.hosts
  WHERE REGEXP_MATCHES(file_name, '^rank.*_trace\.json(\.gz)?$')
),

ranks AS (
  SELECT run_id, k.host, k.device_id, SUM(k.duration_ps) AS busy_ps
  FROM models.ccl_kernels AS k
  INNER JOIN files USING (run_id, host)
  WHERE REGEXP_MATCHES(k.lower_name, '^nccldevkernel_')
  GROUP BY run_id, k.host, k.device_id
),

spread AS (
  SELECT run_id, MIN(busy_ps) AS least_ps, MAX(busy_ps) AS most_ps
  FROM ranks
  GROUP BY run_id
  HAVING COUNT(*) > 1 AND MAX(busy_ps) > 0
)

SELECT
  run_id,
  COALESCE(CAST(s.most_ps - s.least_ps AS DOUBLE) / s.most_ps, 0) AS delay, -- Spread over the longest time.
  COALESCE(CAST(s.most_ps AS DOUBLE) / NULLIF(s.least_ps, 0), 0) AS slowdown -- Longest over shortest time.
FROM main.runs AS r
LEFT JOIN spread AS s USING (run_id)
WHERE r.format IN ('kineto', 'nsys');

CREATE VIEW metrics.ccl_straggler AS SELECT run_id, delay, slowdown FROM metrics.ccl_straggler_v1;

CREATE VIEW models.ccl_messages AS WITH messages AS (
  SELECT
    run_id, instruction_id,
    MAX(string_value) FILTER (WHERE name = 'Collective name') AS called,
    CAST(MAX(COALESCE(string_value, CAST(int_value AS VARCHAR))) FILTER (WHERE name = 'In msg nelems') AS BIGINT)
      AS elements,
    CAST(MAX(COALESCE(string_value, CAST(int_value AS VARCHAR))) FILTER (WHERE name = 'Group size') AS BIGINT)
      AS group_size,
    MAX(
      CASE
        WHEN string_value IN ('Double', 'Long') THEN 8
        WHEN string_value IN ('Float', 'Int') THEN 4
        WHEN string_value IN ('Half', 'BFloat16', 'Short') THEN 2
        WHEN string_value = 'Byte' THEN 1
      END
    ) FILTER (WHERE name = 'dtype') AS element_bytes
  FROM main.instruction_stats
  WHERE name IN ('Collective name', 'In msg nelems', 'Group size', 'dtype')
  GROUP BY run_id, instruction_id
)

SELECT
  run_id,
  host, -- The file, which is one rank.
  h.host_index, -- Its place among the run's files.
  k.event_id, -- The event.
  k.duration_ps, -- Duration.
  m.group_size, -- Ranks of the group.
  m.elements * COALESCE(m.element_bytes, 0) AS bytes, -- Bytes that go in; NULL without arguments.
  m.element_bytes IS NOT NULL AS has_known_type, -- CCL-Bench knows the type of the elements.
  CASE
    WHEN
      REGEXP_MATCHES(k.name, '^nccl(Dev)?Kernel_AllReduce') OR m.called IN ('all_reduce', 'allreduce')
      THEN 'all-reduce'
    WHEN
      REGEXP_MATCHES(k.name, '^nccl(Dev)?Kernel_AllGather') OR m.called IN ('all_gather', 'allgather')
      THEN 'all-gather'
    WHEN
      REGEXP_MATCHES(k.name, '^nccl(Dev)?Kernel_ReduceScatter') OR m.called IN ('reduce_scatter', 'reducescatter')
      THEN 'reduce-scatter'
    WHEN
      REGEXP_MATCHES(k.name, '^nccl(Dev)?Kernel_SendRecv') AND m.called IN ('all_to_allv', 'all_to_all', 'alltoall')
      THEN 'all-to-all'
  END AS kind -- The kind; NULL for a kernel that it takes for no collective.
FROM models.ccl_kernels AS k
INNER JOIN main.hosts AS h USING (run_id, host)
LEFT JOIN messages AS m USING (run_id, instruction_id)
WHERE NOT k.is_nsys;

CREATE VIEW models.collective_instances AS WITH joined AS (
  SELECT
    run_id, instance,
    MIN(kind) AS kind,
    MIN(axis) AS axis,
    COALESCE(MIN(phase) FILTER (WHERE phase <> 'outside'), MIN(phase)) AS phase,
    MIN(step) AS step,
    CAST(MAX(group_size) AS BIGINT) AS group_size,
    COUNT(*) AS ranks,
    MAX(CASE WHEN is_partial THEN 1 ELSE 0 END) = 1 AS is_partial,
    MAX(CASE WHEN is_async THEN 1 ELSE 0 END) = 1 AS is_async,
    MAX(message_bytes) AS message_bytes,
    MIN(start_ps) AS first_start_ps,
    MAX(start_ps) AS last_start_ps,
    MAX(end_ps) AS end_ps,
    MIN(transfer_ps) AS transfer_ps,
    SUM(wait_ps) AS wait_ps
  FROM models.collective_ranks
  GROUP BY run_id, instance
)

SELECT
  run_id, instance, kind, axis, phase, step,
  group_size, -- Devices in a group; 2 for a collective-permute pair.
  ranks, -- Ranks that are in the capture.
  is_partial, -- Ranks are missing from the capture, so transfer and skew cover only the ranks at hand.
  is_async, -- Split into a start and a done.
  message_bytes, -- Message of one rank; the largest if ranks differ.
  CASE
    WHEN message_bytes IS NULL THEN NULL
    WHEN message_bytes < 4096 THEN 'below 4 KiB'
    WHEN message_bytes < 65536 THEN '4 KiB to 64 KiB'
    WHEN message_bytes < 1048576 THEN '64 KiB to 1 MiB'
    WHEN message_bytes < 16777216 THEN '1 MiB to 16 MiB'
    WHEN message_bytes < 268435456 THEN '16 MiB to 256 MiB'
    ELSE '256 MiB and more'
  END AS size_class, -- Range of message_bytes, in factors of 16.
  CAST(
    CASE
      WHEN message_bytes IS NULL THEN NULL
      WHEN message_bytes < 4096 THEN 0
      WHEN message_bytes < 65536 THEN 4096
      WHEN message_bytes < 1048576 THEN 65536
      WHEN message_bytes < 16777216 THEN 1048576
      WHEN message_bytes < 268435456 THEN 16777216
      ELSE 268435456
    END AS BIGINT
  ) AS size_from_bytes, -- Smallest size of that range.
  -- Message times the factor of the kind for n devices, rounded down: 2 (n-1)/n for all-reduce, (n-1)/n for all-gather,
  -- reduce-scatter and all-to-all, 1 for collective-permute; NULL for other kinds.
  CASE
    WHEN kind = 'all-reduce' THEN (2 * (group_size - 1) * message_bytes) // NULLIF(group_size, 0)
    WHEN kind IN ('all-gather', 'reduce-scatter', 'all-to-all')
      THEN ((group_size - 1) * message_bytes) // NULLIF(group_size, 0)
    WHEN kind = 'collective-permute' THEN message_bytes
  END AS bus_bytes,
  first_start_ps, -- Start of the first rank.
  last_start_ps, -- Start of the last rank.
  end_ps, -- Latest end over the ranks.
  transfer_ps, -- Shortest time over the ranks; NULL for a collective that is part of an op that computes.
  CAST(wait_ps AS BIGINT) AS wait_ps, -- Time that the ranks wait, all together.
  last_start_ps - first_start_ps AS skew_ps -- Time between the first and the last start.
FROM joined;

CREATE VIEW models.collective_time AS SELECT
  run_id, device_id, phase, kind, axis,
  COUNT(*) AS executions, -- Executions on the device.
  CAST(SUM(window_ps) AS BIGINT) AS window_ps, -- Time from their starts to their ends.
  CAST(SUM(transfer_ps) AS BIGINT) AS transfer_ps, -- Shortest times over the ranks.
  CAST(SUM(wait_ps) AS BIGINT) AS wait_ps, -- Time that the device waits for later ranks.
  CAST(SUM(window_ps - transfer_ps - wait_ps) AS BIGINT) AS rest_ps, -- The rest of the windows.
  CAST(SUM(overlap_ps) AS BIGINT) AS overlap_ps, -- Time of the windows in which the device runs other ops.
  -- Time in which the op line runs them, or their starts and dones, and so computes nothing.
  CAST(SUM(exposed_added_ps) AS BIGINT) AS exposed_ps,
  -- Bytes sent by the executions whose bytes are known; NULL without any.
  CAST(SUM(wire_bytes) AS BIGINT) AS wire_bytes,
  -- Transfer time of these executions; NULL without any.
  CAST(SUM(transfer_ps) FILTER (WHERE wire_bytes IS NOT NULL) AS BIGINT) AS sending_ps
FROM models.collective_ranks
WHERE NOT is_partial AND NOT is_fused
GROUP BY run_id, device_id, phase, kind, axis;

CREATE VIEW models.steps AS WITH marked AS (
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
  -- No step follows, so until_ps is the end of its own work, and the wait after it is not known.
  next_start_ps IS NULL AND NOT is_predicted AS is_last,
  -- The whole time is known, because another step follows. Also true if the device or host has no such step of the
  -- phase, so that its own duration is all that is known.
  next_start_ps IS NOT NULL OR COUNT(next_start_ps) OVER (PARTITION BY run_id, host, device_id, phase) = 0 AS is_timed,
  -- The step gives tokens to requests that generate, and so does the next one, so the time of a token is known; it is
  -- also known of a predicted step that none follows.
  COALESCE(
    phase IN ('decode', 'mixed')
    AND (next_phase IN ('decode', 'mixed') OR (is_predicted AND next_start_ps IS NULL)),
    FALSE
  ) AS is_followed_decode,
  source -- Where the step comes from.
FROM followed;

CREATE VIEW metrics.copy_bandwidth_v1 AS SELECT
  run_id, device_id,
  kind, -- copy for copy-start and copy-done, async for other asynchronous ops except collectives.
  SUM(bytes) * 1000 / SUM(end_ps - start_ps) AS copy_gbps, -- Bytes over time.
  COUNT(*) AS copies, -- Number of copies of known size.
  CAST(SUM(bytes) AS BIGINT) AS bytes, -- Bytes of all copies.
  SUM(end_ps - start_ps) / 1e9 AS window_ms -- Time of their windows together.
FROM models.copy_windows
WHERE is_async AND bytes > 0
GROUP BY run_id, device_id, kind
HAVING SUM(end_ps - start_ps) > 0;

CREATE VIEW metrics.copy_bandwidth AS SELECT run_id, device_id, kind, copy_gbps, copies, bytes, window_ms FROM metrics.copy_bandwidth_v1;

CREATE VIEW models.execution_ops AS SELECT
  run_id, device_id, phase, step, execution,
  COUNT(*) AS ops, -- Number of leaf ops.
  MIN(start_ps) AS first_start_ps, -- Start of the first op.
  MAX(end_ps) AS last_end_ps, -- Latest end of an op.
  CAST(SUM(busy_ps) AS BIGINT) AS busy_ps, -- Time that the ops add to those before them.
  -- The same, among the ops that compute.
  CAST(COALESCE(SUM(class_busy_ps) FILTER (WHERE op_class = 'compute'), 0) AS BIGINT) AS compute_ps
FROM models.leaf_ops
GROUP BY run_id, device_id, phase, step, execution;

CREATE VIEW models.microbenchmark_times AS WITH ops AS (
  SELECT
    run_id, device_id, module, execution, self_ps, idle_before_ps,
    REGEXP_EXTRACT(module, '^jit_micro[.]([a-z]+)[.].*$', 1) AS kind,
    ROW_NUMBER() OVER (PARTITION BY run_id, device_id, execution ORDER BY start_ps, event_id) AS place,
    ROW_NUMBER() OVER (PARTITION BY run_id, device_id, execution ORDER BY start_ps DESC, event_id DESC) AS from_end,
    DENSE_RANK() OVER (PARTITION BY run_id, device_id, module ORDER BY execution) AS turn
  FROM models.leaf_ops
  WHERE module LIKE 'jit_micro.%'
),

shown AS (
  SELECT run_id, device_id, module, kind, self_ps AS time_ps
  FROM ops
  WHERE kind = 'fusion' AND place > 1 AND from_end > 1
  UNION ALL
  SELECT run_id, device_id, module, kind, idle_before_ps AS time_ps
  FROM ops
  WHERE kind = 'host' AND place = 1 AND turn > 1 AND idle_before_ps IS NOT NULL
  UNION ALL
  SELECT run_id, device_id, 'jit_micro.fusion.hbm.8x128' AS module, 'fusion' AS kind, self_ps AS time_ps
  FROM ops
  WHERE module = 'jit_micro.host.arguments.1'
  UNION ALL
  SELECT run_id, device_id, module, kind, MAX(self_ps) AS time_ps
  FROM ops
  WHERE kind NOT IN ('fusion', 'host', 'collective')
  GROUP BY run_id, device_id, module, execution, kind
)

SELECT
  run_id,
  device_id, -- The device; of a collective the first of its ranks.
  module AS program, -- Name of the program.
  kind, -- collective, product, fusion, copy, attention or host.
  REGEXP_EXTRACT(module, '^jit_micro[.][a-z]+[.]([^.]*)[.].*$', 1) AS class, -- What is measured of the kind.
  CAST(NULL AS VARCHAR) AS axis, -- Mesh axes of a collective.
  REGEXP_EXTRACT(module, '^jit_micro[.][a-z]+[.][^.]*[.](.*)$', 1) AS what, -- Its size.
  time_ps -- Time that the execution shows.
FROM shown
UNION ALL
SELECT
  run_id,
  MIN(c.device_id) AS device_id,
  MIN(i.module) AS program,
  'collective' AS kind,
  MIN(c.kind) AS class,
  MIN(c.axis) AS axis,
  CAST(MAX(c.message_bytes) AS VARCHAR) AS what,
  MIN(c.end_ps - c.start_ps) AS time_ps
FROM main.collectives AS c
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
WHERE i.module LIKE 'jit_micro.%' AND NOT c.is_partial AND c.window_source <> 'fused op'
GROUP BY run_id, c.instance
HAVING MIN(c.end_ps - c.start_ps) IS NOT NULL;

CREATE VIEW preconditions.known_caches AS SELECT run_id FROM models.attention_caches;

CREATE VIEW metrics.memory_in_use_v1 AS WITH placed AS (
  SELECT
    * EXCLUDE (event_id, at_ps),
    ROW_NUMBER() OVER (PARTITION BY run_id, host, allocator ORDER BY used_bytes DESC, event_id) AS place
  FROM models.memory_states
)

SELECT
  run_id, host,
  allocator, -- Name of the allocator; else the device's number on the host; NULL where neither is stated.
  MAX(used_bytes) AS peak_bytes, -- Most in use at once, allocated and reserved.
  MIN(allocated_bytes) FILTER (WHERE place = 1) AS peak_allocated_bytes, -- Allocated at that moment.
  MIN(reserved_bytes) FILTER (WHERE place = 1) AS peak_reserved_bytes, -- Reserved at that moment.
  MIN(capacity_bytes) FILTER (WHERE place = 1) AS capacity_bytes, -- In use or free at that moment; NULL where not known.
  MAX(lifetime_peak_bytes) AS lifetime_peak_bytes, -- Most allocated since the process began; NULL where not known.
  CAST(SUM(is_allocation) AS BIGINT) AS allocations, -- Allocations in the capture.
  COUNT(*) - CAST(SUM(is_allocation) AS BIGINT) AS releases -- Releases in the capture.
FROM placed
GROUP BY run_id, host, allocator;

CREATE VIEW metrics.memory_in_use AS SELECT run_id, host, allocator, peak_bytes, peak_allocated_bytes, peak_reserved_bytes, capacity_bytes, lifetime_peak_bytes, allocations, releases FROM metrics.memory_in_use_v1;

CREATE VIEW preconditions.known_tokens AS SELECT run_id FROM main.runs WHERE batch_size IS NOT NULL AND input_length IS NOT NULL UNION ALL SELECT run_id FROM models.step_tokens;

CREATE VIEW metrics.prediction_basis_v1 AS WITH totals AS (
  SELECT run_id, phase, SUM(time_ps) AS time_ps
  FROM models.prediction_times
  GROUP BY run_id, phase
)

SELECT
  t.run_id,
  t.phase, -- prefill or decode.
  t.basis, -- What the time rests on, as of ops.
  t.time_ps / CAST(a.time_ps AS DOUBLE) AS share, -- Share of the step's device time.
  t.time_ps / 1e9 AS time_ms, -- Time of a step's ops with this basis.
  t.low_ps / 1e9 AS low_ms, -- The same with each op at the low end of its range.
  t.high_ps / 1e9 AS high_ms, -- The same with each op at the high end.
  t.extrapolated_ps / CAST(NULLIF(t.time_ps, 0) AS DOUBLE) AS extrapolated_share, -- Part of the time for layers that were not compiled.
  t.ops -- Ops of a step.
FROM models.prediction_times AS t
INNER JOIN totals AS a ON t.run_id = a.run_id AND t.phase IS NOT DISTINCT FROM a.phase
WHERE a.time_ps > 0;

CREATE VIEW metrics.prediction_basis AS SELECT run_id, phase, basis, share, time_ms, low_ms, high_ms, extrapolated_share, ops FROM metrics.prediction_basis_v1;

CREATE VIEW metrics.prediction_range_v1 AS -- distances in units of 10 ns, whose squares stay below 2^63 up to 30 s
WITH bases AS (
  SELECT
    run_id, phase, time_ps, low_ps, high_ps, extrapolated_ps,
    (time_ps - low_ps) // 10000 AS below,
    (high_ps - time_ps) // 10000 AS above
  FROM models.prediction_times
),

summed AS (
  SELECT
    run_id, phase,
    SUM(time_ps) AS time_ps,
    SUM(low_ps) AS least_ps,
    SUM(high_ps) AS most_ps,
    SUM(extrapolated_ps) AS extrapolated_ps,
    1e4 * SQRT(CAST(SUM(below * below) AS DOUBLE)) AS below_ps,
    1e4 * SQRT(CAST(SUM(above * above) AS DOUBLE)) AS above_ps
  FROM bases
  GROUP BY run_id, phase
)

SELECT
  s.run_id,
  s.phase, -- prefill or decode.
  (s.below_ps + s.above_ps) / s.time_ps AS spread, -- Range over time.
  s.time_ps / 1e9 AS time_ms, -- Predicted device time of the step.
  (s.time_ps - s.below_ps) / 1e9 AS low_ms, -- Low end of its range.
  (s.time_ps + s.above_ps) / 1e9 AS high_ms, -- High end.
  s.least_ps / 1e9 AS least_ms, -- The time with all ops at the low ends of their ranges.
  s.most_ps / 1e9 AS most_ms, -- The time with all ops at the high ends.
  s.extrapolated_ps / CAST(s.time_ps AS DOUBLE) AS extrapolated_share, -- Part of the time for layers that were not compiled.
  p.host_ps / 1e9 AS host_ms -- Time that the host was said to add to the step, which is not in the range.
FROM summed AS s
LEFT JOIN main.predictions AS p ON s.run_id = p.run_id AND s.phase = p.phase
WHERE s.time_ps > 0;

CREATE VIEW metrics.prediction_range AS SELECT run_id, phase, spread, time_ms, low_ms, high_ms, least_ms, most_ms, extrapolated_share, host_ms FROM metrics.prediction_range_v1;

CREATE VIEW metrics.scaling_efficiency_v1 AS WITH rated AS (
  SELECT
    run_id,
    v.value AS tokens_per_s,
    c.chips,
    DENSE_RANK() OVER (
      ORDER BY
        r.model, r.model_family, r.num_layers, r.hidden_size, r.num_heads, r.head_dim, r.vocab_size,
        r.num_params, r.num_params_active, r.num_params_embedding, r.has_tied_embeddings, r.capacity_factor, r.dtype,
        r.batch_size, r.input_length, r.output_length, r.framework, r.backend, r.origin,
        w.ici_factor, w.hbm_factor, w.host_ps, w.kernels, c.kind
    ) AS workload
  FROM main.metric_values AS v
  INNER JOIN main.runs AS r USING (run_id)
  INNER JOIN models.run_chips AS c USING (run_id)
  LEFT JOIN models.what_ifs AS w USING (run_id)
  WHERE
    v.metric = 'throughput' AND v.version = 1 AND v.value > 0
    AND r.model IS NOT NULL AND r.batch_size IS NOT NULL AND r.input_length IS NOT NULL AND r.output_length IS NOT NULL
),

placed AS (
  SELECT
    *,
    MIN(chips) OVER (PARTITION BY workload) AS fewest_chips
  FROM rated
)

SELECT
  p.run_id,
  -- The run on the fewest chips with which it is compared; the run itself if it is one of those.
  b.run_id AS baseline_run_id,
  p.tokens_per_s * b.chips / (b.tokens_per_s * p.chips) AS efficiency, -- Throughput per chip over that of the baseline.
  p.tokens_per_s / b.tokens_per_s AS speedup, -- Throughput over that of the baseline.
  p.chips, -- Chips of the run.
  b.chips AS baseline_chips -- Chips of the baseline.
FROM placed AS p
INNER JOIN placed AS b USING (workload)
WHERE b.chips = b.fewest_chips;

CREATE VIEW metrics.scaling_efficiency AS SELECT run_id, baseline_run_id, efficiency, speedup, chips, baseline_chips FROM metrics.scaling_efficiency_v1;

CREATE VIEW metrics.traffic_interval_histogram_v1 AS WITH placed AS (
  SELECT
    run_id, phase, axis_from, axis_to, crosses_step,
    CAST(
      CASE
        WHEN interval_ps < 1000000 THEN 0
        WHEN interval_ps < 10000000 THEN 1
        WHEN interval_ps < 100000000 THEN 10
        WHEN interval_ps < 1000000000 THEN 100
        WHEN interval_ps < 10000000000 THEN 1000
        ELSE 10000
      END AS BIGINT
    ) AS from_us
  FROM models.traffic_intervals
)

SELECT
  run_id, phase, axis_from, axis_to, crosses_step,
  from_us, -- Lower end of the bin, inclusive.
  -- Upper end of the bin, exclusive; NULL for the last.
  CASE WHEN from_us = 0 THEN 1 WHEN from_us < 10000 THEN from_us * 10 END AS until_us,
  COUNT(*) AS intervals -- Number of intervals.
FROM placed
GROUP BY run_id, phase, axis_from, axis_to, crosses_step, from_us;

CREATE VIEW metrics.traffic_interval_histogram AS SELECT run_id, phase, axis_from, axis_to, crosses_step, from_us, until_us, intervals FROM metrics.traffic_interval_histogram_v1;

CREATE VIEW metrics.traffic_interval_v1 AS WITH ranked AS (
  SELECT
    * EXCLUDE (device_id, event_id),
    CUME_DIST() OVER (PARTITION BY run_id, phase, axis_from, axis_to, crosses_step ORDER BY interval_ps) AS quantile
  FROM models.traffic_intervals
)

SELECT
  run_id, phase, axis_from, axis_to, crosses_step,
  SUM(interval_ps) / (COUNT(*) * 1e6) AS interval_us, -- Mean interval.
  MIN(interval_ps) FILTER (WHERE quantile >= 0.5) / 1e6 AS p50_us,
  MIN(interval_ps) FILTER (WHERE quantile >= 0.9) / 1e6 AS p90_us,
  MIN(interval_ps) FILTER (WHERE quantile >= 0.99) / 1e6 AS p99_us,
  COUNT(*) AS intervals, -- Number of intervals on all devices.
  -- Intervals of 0, in which the previous collective still ran.
  COUNT(*) FILTER (WHERE is_overlapping) AS overlapping
FROM ranked
GROUP BY run_id, phase, axis_from, axis_to, crosses_step;

CREATE VIEW metrics.traffic_interval AS SELECT run_id, phase, axis_from, axis_to, crosses_step, interval_us, p50_us, p90_us, p99_us, intervals, overlapping FROM metrics.traffic_interval_v1;

CREATE VIEW models.traffic_interval_shares AS WITH ranked AS (
  SELECT
    run_id,
    phase,
    axis_from,
    axis_to,
    interval_ps,
    CUME_DIST() OVER (PARTITION BY run_id, phase, axis_from, axis_to ORDER BY interval_ps) AS share,
    COUNT(*) OVER (PARTITION BY run_id, phase, axis_from, axis_to) AS intervals
  FROM models.traffic_intervals
)

SELECT
  run_id, -- The run.
  phase, -- Phase of both; NULL in a step without one, outside before the first and after the last.
  axis_from, -- Mesh axes of the collective before.
  axis_to, -- Mesh axes of the collective that starts.
  MAX(share) AS share, -- Share of the intervals that are at most interval_ps.
  MAX(interval_ps) AS interval_ps, -- Length of the interval.
  MIN(intervals) AS intervals -- Intervals of these axes in the phase.
FROM ranked
GROUP BY run_id, phase, axis_from, axis_to, FLOOR(-100 * share);

CREATE VIEW models.layer_ops AS WITH executed AS (
  SELECT
    run_id, device_id, phase, instruction_id, iteration,
    SUM(self_ps) AS self_ps,
    MIN(start_ps) AS start_ps
  FROM models.leaf_ops
  WHERE phase IS DISTINCT FROM 'outside'
  GROUP BY run_id, device_id, phase, instruction_id, iteration
)

SELECT
  run_id, e.device_id, e.phase, instruction_id,
  CASE
    WHEN l.layers_per_iteration IS NULL THEN l.first_layer
    ELSE l.first_layer + e.iteration * l.layers_per_iteration
  END AS layer, -- Transformer layer.
  e.self_ps, -- Self time of all its executions.
  e.start_ps -- Start of the first.
FROM executed AS e
INNER JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id)
WHERE l.first_layer IS NOT NULL;

CREATE VIEW models.op_layers AS SELECT
  run_id, o.event_id, device_id,
  -- Transformer layer; NULL if unknown, and in a slot that only other stages fill.
  CASE
    WHEN l.layers_per_iteration IS NULL THEN l.first_layer
    ELSE l.first_layer + o.iteration * l.layers_per_iteration
  END AS layer,
  l.stage, -- Pipeline stage of the device; NULL without a pipeline, or if the mesh is unknown.
  l.stage_layer, -- Slot of the layer in the program of all stages; NULL if the program has no slots.
  l.tick, -- Tick of the schedule; NULL outside of ticks.
  -- Microbatch that the stage works on; NULL outside of ticks, and in ticks in which the stage has none because the
  -- pipeline fills or drains.
  l.microbatch, l.part
FROM main.ops AS o
LEFT JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id);

CREATE VIEW metrics.ccl_average_memory_bandwidth_v1 AS WITH moved AS (
  SELECT run_id, event_id, MAX(COALESCE(int_value, CAST(FLOOR(double_value + 5e-1) AS BIGINT))) AS bytes
  FROM main.event_stats
  WHERE name = 'bytes'
  GROUP BY run_id, event_id
),

on_gpus AS (
  SELECT run_id, o.event_id, o.duration_ps
  FROM main.runs AS r
  INNER JOIN main.ops AS o USING (run_id)
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  WHERE
    r.format IN ('kineto', 'nsys') AND o.line LIKE 'Stream #%'
    AND (i.name LIKE 'Memcpy%' OR (i.name LIKE 'Memset%' AND r.format = 'kineto'))
  UNION ALL
  SELECT run_id, e.event_id, e.duration_ps
  FROM main.runs AS r
  INNER JOIN main.host_events AS e USING (run_id)
  WHERE r.format = 'kineto' AND REGEXP_MATCHES(LOWER(e.name), 'memcpy|memset')
)

SELECT
  run_id,
  SUM(bytes) * 1000 / SUM(end_offset_ps - start_offset_ps) AS bandwidth_gbps, -- Bytes over time.
  COUNT(*) AS copies, -- Pairs covered.
  CAST(SUM(bytes) AS BIGINT) AS bytes -- Memory traffic of the starts.
FROM models.ccl_copies
WHERE purpose = 'bandwidth' AND bytes > 0
GROUP BY run_id
UNION ALL
SELECT
  run_id,
  SUM(m.bytes) * 1000 / SUM(e.duration_ps) AS bandwidth_gbps,
  COUNT(*) AS copies,
  CAST(SUM(m.bytes) AS BIGINT) AS bytes
FROM on_gpus AS e
INNER JOIN moved AS m USING (run_id, event_id)
WHERE m.bytes > 0 AND e.duration_ps > 0
GROUP BY run_id;

CREATE VIEW metrics.ccl_average_memory_bandwidth AS SELECT run_id, bandwidth_gbps, copies, bytes FROM metrics.ccl_average_memory_bandwidth_v1;

CREATE VIEW metrics.ccl_memory_transfer_overhead_v1 AS WITH stepped AS (
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

on_gpus AS (
  SELECT
    run_id, is_nsys,
    CASE WHEN is_nsys THEN '' ELSE host END AS place,
    event_id, start_ps, end_ps,
    NOT is_nsys
    AND REGEXP_MATCHES(
      lower_name, 'memcpy|memset|copy_kernel|copy[.]|copy-start|copy-done|(^|[^a-z0-9_])dma($|[^a-z0-9_])'
    )
      AS is_copy,
    is_nsys OR NOT REGEXP_MATCHES(
      lower_name,
      'nccl|allreduce|allgather|reducescatter|broadcast|cross[-_]?device|all_reduce|all_gather|reduce_scatter|sendrecv'
    ) AS is_no_communication
  FROM models.ccl_kernels
  WHERE end_ps > start_ps
  UNION ALL
  SELECT
    run_id,
    TRUE AS is_nsys,
    '' AS place,
    o.event_id, o.start_ps, o.start_ps + o.duration_ps AS end_ps,
    TRUE AS is_copy,
    TRUE AS is_no_communication
  FROM main.runs AS r
  INNER JOIN main.ops AS o USING (run_id)
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  WHERE r.format = 'nsys' AND o.line LIKE 'Stream #%' AND i.name LIKE 'Memcpy%' AND o.duration_ps > 0
),

-- copies and compute, the former told by `is_copy`
laid AS (
  SELECT
    run_id, is_nsys, place, start_ps, end_ps, is_copy,
    is_copy OR is_no_communication AS counts,
    MAX(CASE WHEN is_copy OR is_no_communication THEN end_ps END) OVER earlier AS covered_until_ps,
    MAX(CASE WHEN is_no_communication AND NOT is_copy THEN end_ps END) OVER earlier AS computed_until_ps
  FROM on_gpus
  WINDOW earlier AS (
    PARTITION BY run_id, place ORDER BY start_ps, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  )
),

of_places AS (
  SELECT
    run_id, is_nsys, place,
    SUM(
      CASE WHEN counts THEN GREATEST(end_ps - GREATEST(start_ps, COALESCE(covered_until_ps, start_ps)), 0) ELSE 0 END
      - CASE
        WHEN counts AND NOT is_copy THEN GREATEST(end_ps - GREATEST(start_ps, COALESCE(computed_until_ps, start_ps)), 0)
        ELSE 0
      END
    ) AS exposed_ps,
    MAX(end_ps) - MIN(start_ps) AS span_ps
  FROM laid
  GROUP BY run_id, is_nsys, place
  HAVING COUNT(*) FILTER (WHERE is_copy) > 0
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
UNION ALL
SELECT
  run_id,
  CASE
    WHEN is_nsys THEN SUM(exposed_ps) * 100 / SUM(span_ps)
    ELSE ROUND(SUM(exposed_ps) * 100 / SUM(span_ps), 4)
  END AS overhead_percent,
  SUM(exposed_ps) / 1e9 AS exposed_ms,
  SUM(span_ps) / 1e9 AS steps_ms
FROM of_places
GROUP BY run_id, is_nsys
HAVING SUM(span_ps) > 0;

CREATE VIEW metrics.ccl_memory_transfer_overhead AS SELECT run_id, overhead_percent, exposed_ms, steps_ms FROM metrics.ccl_memory_transfer_overhead_v1;

CREATE VIEW metrics.ccl_bandwidth_utilization_v1 AS WITH numbered AS (
  SELECT run_id, event_id, MAX(COALESCE(string_value, CAST(int_value AS VARCHAR))) AS unique_id
  FROM main.event_stats
  WHERE name = 'all_reduce_unique_id'
  GROUP BY run_id, event_id
),

collectives AS (
  SELECT
    run_id, e.event_id,
    e.category AS kind,
    CASE WHEN e.category = 'all-reduce' THEN COALESCE(n.unique_id, '') ELSE e.name END AS group_key,
    e.host, e.plane, e.device_id,
    e.bytes_accessed AS bytes,
    e.device_duration_ps AS duration_ps
  FROM models.ccl_events AS e
  LEFT JOIN numbered AS n USING (run_id, event_id)
  WHERE e.category IN ('all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter')
),

members AS (
  SELECT run_id, kind, group_key, host, plane, device_id
  FROM collectives
  GROUP BY run_id, kind, group_key, host, plane, device_id
),

sizes AS (
  SELECT run_id, kind, group_key, COUNT(*) AS devices
  FROM members
  GROUP BY run_id, kind, group_key
),

rated AS (
  SELECT
    run_id, c.event_id, c.kind, z.devices,
    CASE WHEN c.kind = 'all-reduce' THEN 2 ELSE 1 END * (z.devices - 1) * c.bytes
    / (z.devices * c.duration_ps) AS bytes_per_ps
  FROM collectives AS c
  INNER JOIN sizes AS z USING (run_id, kind, group_key)
  WHERE c.bytes > 0 AND c.duration_ps > 0
),

sized AS (
  SELECT
    run_id, kind, event_id, host_index, group_size, bytes, duration_ps,
    MIN(host_index) OVER (PARTITION BY run_id, kind) AS first_index
  FROM models.ccl_messages
  WHERE kind IS NOT NULL AND bytes > 0 AND has_known_type AND group_size IS NOT NULL AND duration_ps > 0
),

all_rated AS (
  SELECT run_id, event_id, kind, devices, bytes_per_ps
  FROM rated
  UNION ALL
  SELECT
    run_id, event_id, kind,
    group_size AS devices,
    CASE WHEN kind = 'all-reduce' THEN 2 ELSE 1 END * (group_size - 1) * bytes
    / (group_size * duration_ps) AS bytes_per_ps
  FROM sized
  WHERE host_index = first_index
),

ranked AS (
  SELECT
    * EXCLUDE (event_id),
    ROW_NUMBER() OVER (PARTITION BY run_id, kind ORDER BY bytes_per_ps, event_id) AS place,
    COUNT(*) OVER (PARTITION BY run_id, kind) AS places
  FROM all_rated
)

SELECT
  run_id,
  kind, -- The category.
  (
    MAX(bytes_per_ps) FILTER (WHERE place = (places + 1) // 2)
    + MAX(bytes_per_ps) FILTER (WHERE place = places // 2 + 1)
  )
  * (5e11 / 1073741824) AS bandwidth, -- Median, in GiB/s.
  COUNT(*) AS events, -- Events covered.
  MAX(devices) AS devices -- Most devices taken for a group.
FROM ranked
GROUP BY run_id, kind;

CREATE VIEW metrics.ccl_bandwidth_utilization AS SELECT run_id, kind, bandwidth, events, devices FROM metrics.ccl_bandwidth_utilization_v1;

CREATE VIEW metrics.ccl_collective_vol_v1 AS WITH added AS (
  SELECT
    run_id,
    COALESCE(SUM(bytes_accessed) FILTER (WHERE category = 'all-reduce'), 0) AS all_reduce_bytes,
    COUNT(bytes_accessed) FILTER (WHERE category = 'all-reduce') AS all_reduces,
    COALESCE(SUM(bytes_accessed) FILTER (WHERE category = 'all-gather'), 0) AS all_gather_bytes,
    COUNT(bytes_accessed) FILTER (WHERE category = 'all-gather') AS all_gathers,
    COALESCE(SUM(bytes_accessed) FILTER (WHERE category = 'reduce-scatter'), 0) AS reduce_scatter_bytes,
    COUNT(bytes_accessed) FILTER (WHERE category = 'reduce-scatter') AS reduce_scatters,
    COALESCE(SUM(bytes_accessed) FILTER (WHERE category = 'all-to-all'), 0) AS all_to_all_bytes,
    COUNT(bytes_accessed) FILTER (WHERE category = 'all-to-all') AS all_to_alls
  FROM models.ccl_events
  GROUP BY run_id
  UNION ALL
  SELECT
    run_id,
    COALESCE(SUM(bytes) FILTER (WHERE kind = 'all-reduce'), 0) AS all_reduce_bytes,
    COUNT(bytes) FILTER (WHERE kind = 'all-reduce') AS all_reduces,
    COALESCE(SUM(bytes) FILTER (WHERE kind = 'all-gather'), 0) AS all_gather_bytes,
    COUNT(bytes) FILTER (WHERE kind = 'all-gather') AS all_gathers,
    COALESCE(SUM(bytes) FILTER (WHERE kind = 'reduce-scatter'), 0) AS reduce_scatter_bytes,
    COUNT(bytes) FILTER (WHERE kind = 'reduce-scatter') AS reduce_scatters,
    COALESCE(SUM(bytes) FILTER (WHERE kind = 'all-to-all'), 0) AS all_to_all_bytes,
    COUNT(bytes) FILTER (WHERE kind = 'all-to-all') AS all_to_alls
  FROM models.ccl_messages
  WHERE host_index = 0
  GROUP BY run_id
),

volumes AS (
  SELECT run_id, 'all-reduce' AS kind, all_reduce_bytes AS bytes, all_reduces AS events
  FROM added
  UNION ALL
  SELECT run_id, 'all-gather' AS kind, all_gather_bytes AS bytes, all_gathers AS events
  FROM added
  UNION ALL
  SELECT run_id, 'reduce-scatter' AS kind, reduce_scatter_bytes AS bytes, reduce_scatters AS events
  FROM added
  UNION ALL
  SELECT run_id, 'all-to-all' AS kind, all_to_all_bytes AS bytes, all_to_alls AS events
  FROM added
  UNION ALL
  SELECT
    run_id,
    'total' AS kind,
    all_reduce_bytes + all_gather_bytes + reduce_scatter_bytes + all_to_all_bytes AS bytes,
    all_reduces + all_gathers + reduce_scatters + all_to_alls AS events
  FROM added
)

SELECT
  run_id,
  kind, -- The category, or total for all four.
  bytes / 1e9 AS volume_gb, -- Memory traffic in decimal GB.
  events -- Events covered.
FROM volumes;

CREATE VIEW metrics.ccl_collective_vol AS SELECT run_id, kind, volume_gb, events FROM metrics.ccl_collective_vol_v1;

CREATE VIEW metrics.collective_skew_v1 AS WITH chosen AS (
  SELECT run_id, i.phase, i.axis, i.instance, i.is_partial, i.skew_ps, i.last_start_ps
  FROM models.collective_instances AS i
  LEFT JOIN models.predicted_runs AS g USING (run_id)
  WHERE i.ranks > 1 AND g.is_predicted IS NULL
  QUALIFY i.is_partial = MIN(i.is_partial) OVER (PARTITION BY run_id, i.phase, i.axis) -- whole executions, if there are any
),

ranked AS (
  SELECT
    * EXCLUDE (instance, last_start_ps),
    CUME_DIST() OVER (PARTITION BY run_id, phase, axis ORDER BY skew_ps) AS quantile
  FROM chosen
),

summed AS (
  SELECT
    run_id, phase, axis,
    SUM(skew_ps) AS skew_ps,
    MIN(skew_ps) FILTER (WHERE quantile >= 0.5) AS p50_ps,
    MIN(skew_ps) FILTER (WHERE quantile >= 0.9) AS p90_ps,
    MIN(skew_ps) FILTER (WHERE quantile >= 0.99) AS p99_ps,
    COUNT(*) FILTER (WHERE is_partial) AS partial_executions,
    COUNT(*) AS executions
  FROM ranked
  GROUP BY run_id, phase, axis
),

-- the rank that starts last, if it is one
latest AS (
  SELECT j.run_id, j.phase, j.axis, j.instance, MIN(c.device_id) AS device_id
  FROM chosen AS j
  INNER JOIN main.collectives AS c ON j.run_id = c.run_id AND j.instance = c.instance AND j.last_start_ps = c.start_ps
  GROUP BY j.run_id, j.phase, j.axis, j.instance
  HAVING COUNT(*) = 1
),

lasts AS (
  SELECT run_id, phase, axis, device_id, COUNT(*) AS times
  FROM latest
  GROUP BY run_id, phase, axis, device_id
),

most AS (
  SELECT run_id, phase, axis, device_id, times
  FROM lasts
  QUALIFY times = MAX(times) OVER (PARTITION BY run_id, phase, axis)
),

slowest AS (
  SELECT run_id, phase, axis, CASE WHEN COUNT(*) = 1 THEN MIN(device_id) END AS device_id, MIN(times) AS times
  FROM most
  GROUP BY run_id, phase, axis
)

SELECT
  s.run_id, s.phase, s.axis,
  s.skew_ps / (s.executions * 1e6) AS skew_us, -- Mean skew.
  CASE WHEN s.partial_executions > 0 THEN 'lower' END AS bound,
  s.p50_ps / 1e6 AS p50_us,
  s.p90_ps / 1e6 AS p90_us,
  s.p99_ps / 1e6 AS p99_us,
  s.executions, -- Executions covered.
  o.device_id AS last_device_id, -- Device that alone was last most often; NULL if none was, or several as often.
  COALESCE(o.times, 0) / s.executions AS last_share -- Share of the executions in which one of these was last.
FROM summed AS s
LEFT JOIN slowest AS o ON s.run_id = o.run_id AND s.phase IS NOT DISTINCT FROM o.phase AND s.axis = o.axis;

CREATE VIEW metrics.collective_skew AS SELECT run_id, phase, axis, skew_us, bound, p50_us, p90_us, p99_us, executions, last_device_id, last_share FROM metrics.collective_skew_v1;

CREATE VIEW metrics.collective_transfer_v1 AS WITH chosen AS (
  SELECT
    run_id, phase, kind, axis, size_class, size_from_bytes, is_partial, is_async, ranks, transfer_ps, wait_ps,
    bus_bytes, message_bytes
  FROM models.collective_instances
  WHERE transfer_ps IS NOT NULL
  QUALIFY is_partial = MIN(is_partial) OVER (PARTITION BY run_id, phase, kind, axis, size_class) -- whole executions, if there are any
),

ranked AS (
  SELECT
    *,
    CUME_DIST() OVER (PARTITION BY run_id, phase, kind, axis, size_class ORDER BY transfer_ps) AS quantile
  FROM chosen
)

SELECT
  run_id, phase, kind, axis,
  size_class, -- Range of the message size; NULL if unknown.
  MIN(size_from_bytes) AS size_from_bytes, -- Smallest message size of the class; NULL if unknown.
  SUM(transfer_ps) / (COUNT(*) * 1e6) AS transfer_us, -- Mean transfer time.
  CASE WHEN COUNT(*) FILTER (WHERE is_partial) > 0 THEN 'upper' END AS bound,
  MIN(transfer_ps) FILTER (WHERE quantile >= 0.5) / 1e6 AS p50_us,
  MIN(transfer_ps) FILTER (WHERE quantile >= 0.9) / 1e6 AS p90_us,
  MIN(transfer_ps) FILTER (WHERE quantile >= 0.99) / 1e6 AS p99_us,
  -- Mean time that a rank waits: its time beyond the transfer time, as far as models.collective_ranks counts it.
  SUM(wait_ps) / (SUM(ranks) * 1e6) AS wait_us,
  -- Bus bandwidth; NULL if no bytes are known.
  SUM(bus_bytes) FILTER (WHERE bus_bytes > 0) * 1000
  / NULLIF(SUM(transfer_ps) FILTER (WHERE bus_bytes > 0), 0) AS bus_gbps,
  -- Message bytes over transfer time; NULL if no bytes are known.
  SUM(message_bytes) FILTER (WHERE bus_bytes > 0) * 1000
  / NULLIF(SUM(transfer_ps) FILTER (WHERE bus_bytes > 0), 0) AS algorithm_gbps,
  CAST(SUM(message_bytes) AS BIGINT) AS message_bytes, -- Message bytes of one rank, over all executions.
  SUM(transfer_ps) / 1e9 AS transfer_ms, -- Transfer time over all executions.
  COUNT(*) AS executions, -- Executions covered; all ranks of one count once.
  COUNT(*) FILTER (WHERE is_async) AS async_executions -- Asynchronous ones among them.
FROM ranked
GROUP BY run_id, phase, kind, axis, size_class;

CREATE VIEW metrics.collective_transfer AS SELECT run_id, phase, kind, axis, size_class, size_from_bytes, transfer_us, bound, p50_us, p90_us, p99_us, wait_us, bus_gbps, algorithm_gbps, message_bytes, transfer_ms, executions, async_executions FROM metrics.collective_transfer_v1;

CREATE VIEW metrics.ici_utilization_v1 AS WITH sent AS (
  SELECT
    run_id, c.phase, c.kind, c.axis, c.is_async, i.is_partial, i.transfer_ps, c.link,
    CASE WHEN c.link = 'die' THEN d.peak_die_gbps ELSE d.peak_ici_gbps END AS peak_gbps,
    CASE WHEN i.is_partial THEN COALESCE(c.wire_bytes, i.bus_bytes) ELSE c.wire_bytes END AS wire_bytes
  FROM main.collectives AS c
  INNER JOIN models.collective_instances AS i USING (run_id, instance)
  INNER JOIN main.devices AS d USING (run_id, device_id)
  WHERE c.link IS DISTINCT FROM 'dcn'
),

chosen AS (
  SELECT run_id, phase, kind, axis, link, is_async, is_partial, transfer_ps, peak_gbps, wire_bytes
  FROM sent
  WHERE wire_bytes > 0 AND peak_gbps > 0 AND transfer_ps IS NOT NULL
  QUALIFY is_partial = MIN(is_partial) OVER (PARTITION BY run_id, phase, kind, axis) -- whole executions, if there are any
)

SELECT
  run_id, phase, kind, axis,
  SUM(wire_bytes) * 1000 / SUM(transfer_ps) / MIN(peak_gbps) AS utilization, -- Share of the peak.
  CASE WHEN COUNT(*) FILTER (WHERE is_partial) > 0 THEN 'lower' END AS bound,
  SUM(wire_bytes) * 1000 / SUM(transfer_ps) AS sent_gbps, -- Bytes sent over transfer time.
  MIN(peak_gbps) AS peak_gbps, -- Peak of a device; the smallest if devices differ.
  -- Class of the links: ici, or die for devices of one chip, with the peak of the die; mixed for both.
  CASE
    WHEN COUNT(*) = COUNT(link) AND MIN(link) = MAX(link) THEN MIN(link)
    WHEN COUNT(link) > 0 THEN 'mixed'
  END AS link,
  CAST(SUM(wire_bytes) AS BIGINT) AS wire_bytes, -- Bytes that all devices send.
  COUNT(*) AS executions, -- Executions covered, counted on every device that sends.
  COUNT(*) FILTER (WHERE is_async) AS async_executions -- Asynchronous ones among them.
FROM chosen
GROUP BY run_id, phase, kind, axis
HAVING SUM(transfer_ps) > 0;

CREATE VIEW metrics.ici_utilization AS SELECT run_id, phase, kind, axis, utilization, bound, sent_gbps, peak_gbps, link, wire_bytes, executions, async_executions FROM metrics.ici_utilization_v1;

CREATE VIEW metrics.straggler_ranking_v1 AS WITH ranks AS (
  SELECT
    run_id, c.device_id, i.phase, i.axis, i.is_partial, i.wait_ps, c.start_ps,
    c.start_ps - i.first_start_ps AS lateness_ps,
    LAG(c.start_ps) OVER (PARTITION BY run_id, instance ORDER BY c.start_ps) AS previous_start_ps,
    c.start_ps = i.last_start_ps AND COUNT(*) OVER (PARTITION BY run_id, instance, c.start_ps) = 1 AS is_last
  FROM main.collectives AS c
  INNER JOIN models.collective_instances AS i USING (run_id, instance)
  LEFT JOIN models.predicted_runs AS g USING (run_id)
  WHERE i.ranks > 1 AND g.is_predicted IS NULL
),

chosen AS (
  SELECT *
  FROM ranks
  QUALIFY is_partial = MIN(is_partial) OVER (PARTITION BY run_id, phase, axis) -- whole executions, if there are any
),

summed AS (
  SELECT
    run_id, phase, axis, device_id,
    COUNT(*) AS executions,
    COUNT(*) FILTER (WHERE is_last) AS last_executions,
    COUNT(*) FILTER (WHERE is_partial) AS partial_executions,
    COALESCE(SUM(wait_ps) FILTER (WHERE is_last), 0) AS caused_wait_ps,
    COALESCE(SUM(start_ps - previous_start_ps) FILTER (WHERE is_last), 0) AS lead_ps,
    SUM(lateness_ps) AS lateness_ps
  FROM chosen
  GROUP BY run_id, phase, axis, device_id
)

SELECT
  run_id, phase, axis, device_id,
  caused_wait_ps / 1e9 AS caused_wait_ms, -- Time that the ranks wait where it is last, all of them together.
  -- Place among the devices of the phase and axis, 1 for the one that causes most waiting; NULL if it is never last.
  CASE
    WHEN last_executions > 0 THEN RANK() OVER (
      PARTITION BY run_id, phase, axis ORDER BY caused_wait_ps DESC, last_executions DESC
    )
  END AS place,
  last_executions / executions AS last_share, -- Share of its executions in which it alone is last.
  last_executions, -- Number of these.
  executions, -- Executions that it takes part in.
  lead_ps / 1e9 AS lead_ms, -- Where it is last, the time by which it alone was later than all others.
  lateness_ps / (executions * 1e6) AS lateness_us, -- Start after the first rank's, mean over all its executions.
  partial_executions > 0 AS is_partial -- Ranks are missing from the capture, which may have been later.
FROM summed;

CREATE VIEW metrics.straggler_ranking AS SELECT run_id, phase, axis, device_id, caused_wait_ms, place, last_share, last_executions, executions, lead_ms, lateness_us, is_partial FROM metrics.straggler_ranking_v1;

CREATE VIEW preconditions.several_sizes AS WITH sizes AS (SELECT run_id, kind, axis, bus_bytes FROM models.collective_instances WHERE NOT is_partial AND bus_bytes > 0 GROUP BY run_id, kind, axis, bus_bytes HAVING COUNT(*) > 1) SELECT run_id FROM sizes GROUP BY run_id, kind, axis HAVING COUNT(*) >= 3;

CREATE VIEW metrics.collective_attribution_v1 AS WITH known AS (
  SELECT
    run_id, t.phase, t.kind, t.axis, t.executions, t.window_ps, t.overlap_ps, t.wait_ps, t.wire_bytes, t.sending_ps,
    NULLIF(p.peak_gbps, 0) AS peak_gbps
  FROM models.collective_time AS t
  LEFT JOIN models.collective_links AS p USING (run_id, kind, axis)
  UNION ALL
  SELECT
    run_id, phase, kind, axis,
    1 AS executions,
    window_ps, overlap_ps,
    CASE WHEN is_fused THEN 0 END AS wait_ps,
    CASE WHEN NOT is_fused THEN wire_bytes END AS wire_bytes,
    CASE WHEN wire_bytes IS NOT NULL AND NOT is_fused THEN window_ps END AS sending_ps,
    NULL AS peak_gbps
  FROM models.collective_ranks
  WHERE link = 'dcn' OR (is_fused AND NOT is_partial)
),

summed AS (
  SELECT
    run_id, phase, kind, axis,
    CAST(SUM(executions) AS BIGINT) AS executions,
    SUM(window_ps) AS window_ps,
    SUM(overlap_ps) AS overlap_ps,
    SUM(wait_ps) AS arrival_ps,
    SUM(window_ps - overlap_ps - COALESCE(wait_ps, 0)) AS transfer_ps,
    CAST(SUM(wire_bytes) AS BIGINT) AS wire_bytes,
    SUM(sending_ps) AS sending_ps,
    MIN(peak_gbps) AS peak_gbps
  FROM known
  GROUP BY run_id, phase, kind, axis
),

recorded AS (
  SELECT s.*
  FROM summed AS s
  LEFT JOIN models.predicted_runs AS g ON s.run_id = g.run_id
  WHERE s.window_ps > 0 AND g.is_predicted IS NULL
)

SELECT
  run_id, phase, kind, axis,
  GREATEST(transfer_ps, COALESCE(arrival_ps, 0), overlap_ps) / window_ps AS bound_share, -- Share of the windows of the largest part.
  CASE
    WHEN arrival_ps IS NULL AND transfer_ps >= overlap_ps THEN 'transfer or arrival'
    WHEN transfer_ps >= arrival_ps AND transfer_ps >= overlap_ps THEN 'transfer'
    WHEN arrival_ps >= overlap_ps THEN 'arrival'
    ELSE 'overlap'
  END AS bound_by, -- That part: transfer, arrival or overlap; between slices, transfer or arrival together, or overlap.
  transfer_ps / window_ps AS transfer_share, -- Share of the transfer, which is what overlap and arrival leave.
  -- Share in which ranks wait for the last to arrive; NULL between slices, where transfer_share holds it.
  arrival_ps / window_ps AS arrival_share,
  overlap_ps / window_ps AS overlap_share, -- Share that other ops hide.
  window_ps / 1e9 AS window_ms, -- Windows of all ranks.
  (window_ps - overlap_ps) / 1e9 AS exposed_ms, -- What other ops do not hide.
  executions,
  -- Bytes that the ranks send over the shortest time of each execution, decimal; NULL where not known. Well below the
  -- links' rate, a transfer is bound by latency.
  wire_bytes * 1e3 / NULLIF(sending_ps, 0) AS wire_gbps,
  wire_bytes * 1e3 / (NULLIF(sending_ps, 0) * peak_gbps) AS link_share -- Share of the links' peak; NULL where not known.
FROM recorded;

CREATE VIEW metrics.collective_attribution AS SELECT run_id, phase, kind, axis, bound_share, bound_by, transfer_share, arrival_share, overlap_share, window_ms, exposed_ms, executions, wire_gbps, link_share FROM metrics.collective_attribution_v1;

CREATE VIEW metrics.step_time_v1 AS WITH clocks AS (
  SELECT run_id, MIN(clock) AS clock
  FROM models.steps
  GROUP BY run_id
)

SELECT
  run_id,
  s.phase, -- prefill, decode, or mixed for a batch that does both; NULL for a step of none.
  s.step,
  -- Time of the step on the slowest device; NULL if no step follows.
  MAX(s.step_ps) FILTER (WHERE NOT s.is_last) / 1e9 AS step_time_ms,
  MIN(s.step_ps) FILTER (WHERE NOT s.is_last) / 1e9 AS min_ms, -- Time of the step on the fastest device.
  -- Duration on the slowest of the devices on which no step follows; NULL if one follows on all.
  MAX(s.step_ps) FILTER (WHERE s.is_last) / 1e9 AS last_step_ms,
  COUNT(*) AS devices, -- Devices that ran it; hosts if the clock is theirs.
  MIN(clock) AS clock,
  MIN(s.source) AS source -- Where the steps come from.
FROM models.steps AS s
INNER JOIN clocks USING (run_id, clock)
GROUP BY run_id, s.phase, s.step;

CREATE VIEW metrics.step_time AS SELECT run_id, phase, step, step_time_ms, min_ms, last_step_ms, devices, clock, source FROM metrics.step_time_v1;

CREATE VIEW metrics.tpot_v1 AS -- the gap after the last step that decodes may be idle time of the server, so it says nothing about a token
WITH tokens AS (
  SELECT run_id, clock, step, MAX(step_ps) AS token_ps, MIN(source) AS source
  FROM models.steps
  WHERE is_followed_decode
  GROUP BY run_id, clock, step
),

ranked AS (
  SELECT run_id, clock, token_ps, source, CUME_DIST() OVER (PARTITION BY run_id, clock ORDER BY token_ps) AS quantile
  FROM tokens
)

SELECT
  run_id, clock,
  SUM(token_ps) / (COUNT(*) * 1e9) AS tpot_ms, -- Mean time of a step that decodes.
  COUNT(*) AS steps, -- Steps that count.
  MIN(token_ps) FILTER (WHERE quantile >= 0.5) / 1e9 AS p50_ms, -- Median.
  MIN(token_ps) FILTER (WHERE quantile >= 0.9) / 1e9 AS p90_ms, -- 90th percentile.
  MIN(token_ps) FILTER (WHERE quantile >= 0.99) / 1e9 AS p99_ms, -- 99th percentile.
  MIN(source) AS source -- Where the steps come from.
FROM ranked
GROUP BY run_id, clock;

CREATE VIEW metrics.tpot AS SELECT run_id, clock, tpot_ms, steps, p50_ms, p90_ms, p99_ms, source FROM metrics.tpot_v1;

CREATE VIEW models.counted_collectives AS SELECT
  c.run_id,
  c.event_id, -- The op, or the start of an asynchronous one.
  c.device_id, c.phase, c.kind, c.axis,
  c.exposed_added_ps -- Time in which the op line runs it and no collective before it.
FROM main.collectives AS c
LEFT JOIN models.steps AS s
  ON c.run_id = s.run_id AND c.device_id = s.device_id AND c.step = s.step AND s.clock = 'device'
WHERE c.step IS NULL OR s.is_timed;

CREATE VIEW models.phase_steps AS SELECT
  run_id, device_id, phase,
  COUNT(*) AS steps, -- Number of steps.
  COUNT(*) FILTER (WHERE is_timed) AS timed_steps -- Those whose time is known; mean times per step are over these.
FROM models.steps
WHERE clock = 'device'
GROUP BY run_id, device_id, phase;

CREATE VIEW models.run_steps AS WITH united AS (
  SELECT
    run_id, step,
    CASE WHEN COUNT(DISTINCT phase) > 1 THEN 'mixed' ELSE MIN(phase) END AS phase,
    MIN(start_ps) AS start_ps,
    MAX(end_ps) AS end_ps,
    MAX(step_ps) AS longest_ps,
    MIN(CASE WHEN is_timed THEN 1 ELSE 0 END) = 1 AS is_timed,
    MAX(CASE WHEN is_last THEN 1 ELSE 0 END) = 1 AS is_last
  FROM models.steps
  WHERE clock = 'device'
  GROUP BY run_id, step
)

SELECT
  run_id, step, phase,
  start_ps, -- Earliest start over the devices.
  -- Earliest start of the next step; for the last step, its latest end.
  COALESCE(LEAD(start_ps) OVER (PARTITION BY run_id ORDER BY start_ps, step), end_ps) AS until_ps,
  longest_ps, -- Time of the step on the slowest device, start to next start.
  is_timed, -- Its whole time is known on every device that ran it, as models.steps says.
  is_last -- No step follows on a device that ran it.
FROM united;

CREATE VIEW models.step_composition AS WITH ops AS (
  SELECT run_id, o.device_id, o.phase, o.instruction_id, o.iteration, c.kind, c.axis, SUM(o.busy_ps) AS time_ps
  FROM models.leaf_ops AS o
  INNER JOIN models.steps AS s USING (run_id, device_id, step)
  LEFT JOIN models.communication_ops AS c USING (run_id, event_id)
  WHERE s.is_timed
  GROUP BY run_id, o.device_id, o.phase, o.instruction_id, o.iteration, c.kind, c.axis
),

-- without an instruction: the time of steps, less that of their ops
parts AS (
  SELECT run_id, device_id, phase, instruction_id, iteration, kind, axis, time_ps
  FROM ops
  UNION ALL
  SELECT
    run_id, device_id, phase,
    NULL AS instruction_id,
    NULL AS iteration,
    NULL AS kind,
    NULL AS axis,
    step_ps AS time_ps
  FROM models.steps
  WHERE clock = 'device' AND is_timed
  UNION ALL
  SELECT
    run_id, device_id, phase,
    NULL AS instruction_id,
    NULL AS iteration,
    NULL AS kind,
    NULL AS axis,
    -time_ps AS time_ps
  FROM ops
),

described AS (
  SELECT
    run_id, p.phase,
    CASE
      WHEN l.layers_per_iteration IS NULL THEN l.first_layer
      ELSE l.first_layer + p.iteration * l.layers_per_iteration
    END AS layer,
    i.part, i.category, i.op_name,
    REGEXP_EXTRACT(i.name, '^(.*?)([.][0-9]+)*$', 1) AS kernel,
    COALESCE(p.kind, i.collective) AS collective,
    CASE WHEN i.collective IS NOT NULL THEN COALESCE(p.axis, 'unknown') END AS axis,
    instruction_id IS NULL AS is_idle,
    p.time_ps
  FROM parts AS p
  LEFT JOIN main.instructions AS i USING (run_id, instruction_id)
  LEFT JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id)
)

SELECT
  run_id, phase,
  layer, -- Transformer layer; NULL if unknown, and for idle time.
  part, -- Part of the model; NULL if unknown, and for idle time.
  category, -- The profiler's category of the ops; NULL if it names none, and for idle time.
  op_name, -- The framework's name path of the ops; NULL if unknown, and for idle time.
  kernel, -- Name of the ops without the numbers at its end; NULL for idle time.
  collective, -- Kind of collective; NULL for ops that do not communicate, and for idle time.
  axis, -- Mesh axes of the collective; NULL without one.
  -- Time in which the device runs no op; negative if the ops of a step reach beyond it by more than its gaps.
  is_idle,
  CAST(SUM(time_ps) AS BIGINT) AS time_ps -- Time over all steps and devices.
FROM described
GROUP BY run_id, phase, layer, part, category, op_name, kernel, collective, axis, is_idle;

CREATE VIEW models.step_time_shares AS WITH clocks AS (
  SELECT run_id, MIN(clock) AS clock
  FROM models.steps
  GROUP BY run_id
),

timed AS (
  SELECT run_id, 'step_time' AS metric, s.phase AS part, MAX(s.step_ps) AS time_ps
  FROM models.steps AS s
  INNER JOIN clocks USING (run_id, clock)
  WHERE NOT s.is_last
  GROUP BY run_id, s.phase, s.step
  UNION ALL
  SELECT run_id, 'tpot' AS metric, clock AS part, MAX(step_ps) AS time_ps
  FROM models.steps
  WHERE is_followed_decode
  GROUP BY run_id, clock, step
),

ranked AS (
  SELECT
    run_id,
    metric,
    part,
    time_ps,
    CUME_DIST() OVER (PARTITION BY run_id, metric, part ORDER BY time_ps) AS share
  FROM timed
)

SELECT
  run_id, -- The run.
  metric, -- step_time, or tpot for steps that decode alone.
  part, -- The phase, NULL for steps without one; for tpot, the clock.
  MAX(share) AS share, -- Share of the steps that take at most time_ms.
  MAX(time_ps) / 1e9 AS time_ms -- Time of a step.
FROM ranked
GROUP BY run_id, metric, part, FLOOR(-200 * share);

CREATE VIEW preconditions.any_step AS SELECT run_id FROM models.steps;

CREATE VIEW preconditions.decode AS SELECT run_id FROM models.steps WHERE phase IN ('decode', 'mixed');

CREATE VIEW preconditions.decode_after_prefill AS WITH bounds AS (SELECT run_id, MIN(start_ps) FILTER (WHERE phase = 'prefill') AS first_prefill_ps, MAX(start_ps) FILTER (WHERE phase IN ('decode', 'mixed')) AS last_decode_ps FROM models.steps GROUP BY run_id, clock) SELECT run_id FROM bounds WHERE last_decode_ps >= first_prefill_ps;

CREATE VIEW preconditions.device_steps AS SELECT run_id FROM models.steps WHERE clock = 'device';

CREATE VIEW preconditions.followed_decode AS SELECT run_id FROM models.steps WHERE is_followed_decode;

CREATE VIEW preconditions.followed_step AS SELECT run_id FROM models.steps WHERE NOT is_last;

CREATE VIEW preconditions.known_phases AS SELECT run_id FROM models.steps WHERE phase IS NOT NULL;

CREATE VIEW preconditions.one_prefill AS WITH requested AS (SELECT run_id, clock, phase, step, start_ps, MIN(CASE WHEN phase = 'prefill' THEN start_ps END) OVER (PARTITION BY run_id, clock) AS request_ps FROM models.steps) SELECT run_id FROM requested WHERE phase IN ('prefill', 'mixed') AND start_ps >= request_ps GROUP BY run_id, clock HAVING COUNT(DISTINCT step) = 1;

CREATE VIEW preconditions.prefill AS SELECT run_id FROM models.steps WHERE phase = 'prefill';

CREATE VIEW metrics.launch_overhead_v1 AS WITH executions AS (
  SELECT
    run_id, device_id,
    "index" AS execution,
    start_ps,
    MAX(end_ps) OVER (
      PARTITION BY run_id, device_id ORDER BY start_ps, "index" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS last_end_ps
  FROM main.phases
  WHERE kind = 'module' AND device_id IS NOT NULL
),

phase_of_execution AS (
  SELECT
    run_id, device_id, execution,
    COALESCE(MIN(phase) FILTER (WHERE phase <> 'outside'), MIN(phase)) AS phase
  FROM models.execution_ops
  WHERE execution IS NOT NULL
  GROUP BY run_id, device_id, execution
),

timed AS (
  SELECT
    run_id, device_id, f.phase, execution,
    CASE WHEN e.last_end_ps IS NOT NULL THEN GREATEST(e.start_ps - e.last_end_ps, 0) END AS gap_ps,
    e.start_ps - d.dispatch_ps AS dispatch_ps,
    CASE
      WHEN e.last_end_ps IS NOT NULL AND d.dispatch_ps IS NOT NULL
        THEN GREATEST(LEAST(d.dispatch_ps, e.start_ps) - e.last_end_ps, 0)
    END AS late_ps
  FROM executions AS e
  LEFT JOIN phase_of_execution AS f USING (run_id, device_id, execution)
  LEFT JOIN models.dispatches AS d USING (run_id, device_id, execution)
  WHERE e.last_end_ps IS NOT NULL OR d.dispatch_ps IS NOT NULL
),

ranked AS (
  SELECT
    * EXCLUDE (execution),
    CUME_DIST() OVER (PARTITION BY run_id, device_id, phase, gap_ps IS NULL ORDER BY gap_ps) AS gap_quantile,
    CUME_DIST() OVER (
      PARTITION BY run_id, device_id, phase, dispatch_ps IS NULL ORDER BY dispatch_ps
    ) AS dispatch_quantile
  FROM timed
),

recorded AS (
  SELECT r.*
  FROM ranked AS r
  LEFT JOIN models.predicted_runs AS g ON r.run_id = g.run_id
  WHERE g.is_predicted IS NULL
)

SELECT
  run_id,
  phase, -- Phase of the execution that starts; NULL in a step without one, outside of all steps 'outside'.
  device_id,
  -- Mean time between executions; NULL if none follows another.
  SUM(gap_ps) / (NULLIF(COUNT(gap_ps), 0) * 1e6) AS gap_us,
  MIN(gap_ps) FILTER (WHERE gap_quantile >= 0.5) / 1e6 AS p50_us,
  MIN(gap_ps) FILTER (WHERE gap_quantile >= 0.9) / 1e6 AS p90_us,
  MIN(gap_ps) FILTER (WHERE gap_quantile >= 0.99) / 1e6 AS p99_us,
  COUNT(gap_ps) AS launches, -- Executions that follow another.
  -- Mean time from the start of dispatch on the host to the start on the device; NULL if unknown.
  SUM(dispatch_ps) / (NULLIF(COUNT(dispatch_ps), 0) * 1e6) AS dispatch_us,
  MIN(dispatch_ps) FILTER (WHERE dispatch_quantile >= 0.5) / 1e6 AS dispatch_p50_us, -- Median.
  MIN(dispatch_ps) FILTER (WHERE dispatch_quantile >= 0.9) / 1e6 AS dispatch_p90_us, -- 90th percentile.
  MIN(dispatch_ps) FILTER (WHERE dispatch_quantile >= 0.99) / 1e6 AS dispatch_p99_us, -- 99th percentile.
  COUNT(dispatch_ps) AS dispatches, -- Executions whose dispatch is known.
  -- Mean part of the gap before the dispatch began, over the launches whose dispatch is known; NULL where there are
  -- none.
  SUM(late_ps) / (NULLIF(COUNT(late_ps), 0) * 1e6) AS late_us
FROM recorded
GROUP BY run_id, phase, device_id;

CREATE VIEW metrics.launch_overhead AS SELECT run_id, phase, device_id, gap_us, p50_us, p90_us, p99_us, launches, dispatch_us, dispatch_p50_us, dispatch_p90_us, dispatch_p99_us, dispatches, late_us FROM metrics.launch_overhead_v1;

CREATE VIEW metrics.ttft_v1 AS WITH first_prefill AS (
  SELECT run_id, clock, MIN(start_ps) AS start_ps
  FROM models.steps
  WHERE phase = 'prefill'
  GROUP BY run_id, clock
),

first_decode AS (
  SELECT run_id, clock, MIN(d.start_ps) AS start_ps
  FROM models.steps AS d
  INNER JOIN first_prefill AS r USING (run_id, clock)
  WHERE d.phase IN ('decode', 'mixed') AND d.start_ps >= r.start_ps
  GROUP BY run_id, clock
),

prefill AS (
  SELECT run_id, clock, p.device_id, p.step, p.start_ps, p.end_ps, p.source
  FROM models.steps AS p
  LEFT JOIN first_decode AS f USING (run_id, clock)
  WHERE p.phase = 'prefill' AND (f.start_ps IS NULL OR p.start_ps < f.start_ps)
)

SELECT
  run_id, clock,
  (MAX(end_ps) - MIN(start_ps)) / 1e9 AS ttft_ms, -- Time to first token.
  COUNT(DISTINCT step) AS prefill_steps, -- Prefill steps in that time.
  MIN(source) AS source -- Where the steps come from.
FROM prefill
WHERE clock = 'host'
GROUP BY run_id, clock
UNION ALL
SELECT
  run_id, e.clock,
  (MAX(b.last_end_ps) - MIN(b.first_start_ps)) / 1e9 AS ttft_ms,
  COUNT(DISTINCT step) AS prefill_steps,
  MIN(e.source) AS source
FROM prefill AS e
INNER JOIN models.execution_ops AS b USING (run_id, device_id, step)
WHERE e.clock = 'device'
GROUP BY run_id, e.clock;

CREATE VIEW metrics.ttft AS SELECT run_id, clock, ttft_ms, prefill_steps, source FROM metrics.ttft_v1;

CREATE VIEW models.device_busy AS SELECT
  run_id, device_id,
  phase, -- Phase; NULL for a step without one, and outside of steps.
  step, -- Step; NULL before the first, after the last, and in a capture without steps.
  MIN(first_start_ps) AS first_start_ps, -- Start of the first op.
  MAX(last_end_ps) AS last_end_ps, -- Latest end of an op.
  CAST(SUM(ops) AS BIGINT) AS ops, -- Number of leaf ops that start in it.
  CAST(SUM(busy_ps) AS BIGINT) AS busy_ps, -- Union of all leaf ops.
  CAST(SUM(compute_ps) AS BIGINT) AS compute_ps -- Union of the leaf ops that are neither communication nor copies.
FROM models.execution_ops
GROUP BY run_id, device_id, phase, step;

CREATE VIEW models.request_times AS WITH device_steps AS (
  SELECT run_id, device_id, step, MIN(first_start_ps) AS start_ps, MAX(last_end_ps) AS end_ps
  FROM models.execution_ops
  WHERE step IS NOT NULL
  GROUP BY run_id, device_id, step
),

bounds AS (
  SELECT run_id, clock, phase, step, start_ps, end_ps, until_ps
  FROM models.steps
  WHERE clock = 'host' AND phase IS NOT NULL
  UNION ALL
  SELECT run_id, s.clock, s.phase, step, o.start_ps, o.end_ps, s.until_ps
  FROM models.steps AS s
  INNER JOIN device_steps AS o USING (run_id, device_id, step)
  WHERE s.clock = 'device' AND s.phase IS NOT NULL
),

placed AS (
  SELECT
    *,
    MIN(CASE WHEN phase = 'prefill' THEN start_ps END) OVER (PARTITION BY run_id, clock) AS request_ps
  FROM bounds
),

bounded AS (
  SELECT
    run_id, clock,
    MIN(start_ps) FILTER (WHERE phase = 'prefill') AS prefill_start_ps,
    MAX(end_ps) FILTER (WHERE phase = 'prefill') AS prefill_end_ps,
    MIN(start_ps) FILTER (WHERE phase IN ('decode', 'mixed')) AS decode_start_ps,
    MAX(end_ps) FILTER (WHERE phase IN ('decode', 'mixed')) AS decode_end_ps,
    MAX(until_ps) FILTER (WHERE phase IN ('decode', 'mixed')) AS decode_until_ps,
    COUNT(DISTINCT step) FILTER (WHERE phase = 'prefill') AS prefill_steps,
    COUNT(DISTINCT step) FILTER (WHERE phase = 'mixed') AS mixed_steps,
    COUNT(DISTINCT step) FILTER (WHERE phase = 'decode') AS decode_steps
  FROM placed
  WHERE request_ps IS NULL OR start_ps >= request_ps
  GROUP BY run_id, clock
),

-- how many decode steps follow the one that stands for them
unrolled AS (
  SELECT b.*, CASE WHEN r.origin = 'predicted' AND b.decode_steps = 1 THEN r.output_length - 2 END AS more_steps
  FROM bounded AS b
  LEFT JOIN main.runs AS r USING (run_id)
)

SELECT
  run_id, clock,
  prefill_start_ps, -- Start of the first prefill step; NULL without.
  prefill_end_ps, -- End of the last prefill step.
  decode_start_ps, -- Start of the first step that decodes; NULL without.
  -- End of the last step that decodes.
  decode_end_ps + COALESCE(more_steps, 0) * (decode_until_ps - decode_start_ps) AS decode_end_ps,
  prefill_steps, -- Number of prefill steps.
  mixed_steps, -- Number of steps that prefill and decode.
  decode_steps + COALESCE(more_steps, 0) AS decode_steps -- Number of decode steps.
FROM unrolled;

CREATE VIEW models.microbenchmark_rates AS WITH ranked AS (
  SELECT
    run_id, device_id, program, kind, class, axis, what, time_ps,
    CUME_DIST() OVER (PARTITION BY run_id, program, class, axis, what ORDER BY time_ps) AS quantile
  FROM models.microbenchmark_times
),

spread AS (
  SELECT
    run_id, program, kind, class, axis, what,
    MIN(device_id) AS device_id,
    MIN(time_ps) FILTER (WHERE quantile >= 0.5) AS median_ps,
    MIN(time_ps) FILTER (WHERE quantile >= 0.1) AS low_ps,
    MIN(time_ps) FILTER (WHERE quantile >= 0.9) AS high_ps,
    COUNT(*) AS samples
  FROM ranked
  GROUP BY run_id, program, kind, class, axis, what
),

sized AS (
  SELECT
    *,
    -- operations of a product of m x k and k x n, and of causal attention
    CASE
      WHEN kind = 'product'
        THEN
          2 * CAST(REGEXP_EXTRACT(what, '^([0-9]+)x[0-9]+x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x([0-9]+)x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x[0-9]+x([0-9]+)$', 1) AS BIGINT)
      -- two products over the tokens up to each, which are half of all
      WHEN class = 'flash'
        THEN
          2 * CAST(REGEXP_EXTRACT(what, '^([0-9]+)x[0-9]+x[0-9]+x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x([0-9]+)x[0-9]+x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x[0-9]+x([0-9]+)x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x[0-9]+x([0-9]+)x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x[0-9]+x[0-9]+x([0-9]+)$', 1) AS BIGINT)
    END AS flops,
    -- bytes that a copy, or a fusion of one operand in float32, reads and writes; the keys and values in bf16
    CASE
      WHEN class = 'paged'
        THEN
          4 * CAST(REGEXP_EXTRACT(what, '^([0-9]+)x[0-9]+x[0-9]+x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x([0-9]+)x[0-9]+x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x[0-9]+x([0-9]+)x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x[0-9]+x[0-9]+x([0-9]+)$', 1) AS BIGINT)
      WHEN kind = 'copy' THEN 2 * CAST(what AS BIGINT)
      WHEN kind = 'fusion'
        THEN
          8 * CAST(REGEXP_EXTRACT(what, '^([0-9]+)x[0-9]+$', 1) AS BIGINT)
          * CAST(REGEXP_EXTRACT(what, '^[0-9]+x([0-9]+)$', 1) AS BIGINT)
    END AS bytes
  FROM spread
)

SELECT
  run_id,
  s.program, -- Name of the program.
  s.kind, -- collective, product, fusion, copy, attention or host.
  -- Of collectives the kind that ran, of products the type, of fusions and copies the memory; the attention kernel.
  s.class,
  s.axis,
  -- Bytes of a collective's message or of a copy, rows x inner length x columns of a product, shape of a fusion,
  -- sequences x heads x tokens x width of attention (over pages, heads of keys), or arguments of a program.
  s.what,
  d.kind AS chip, -- Kind of the device.
  s.median_ps / 1e6 AS value_us, -- Median time.
  s.low_ps / 1e6 AS low_us, -- 10th percentile.
  s.high_ps / 1e6 AS high_us, -- 90th percentile.
  s.samples AS n, -- Number of times, over all devices or groups.
  -- Of a product, and of flash attention: its rate at the median.
  CAST(s.flops AS DOUBLE) / NULLIF(s.median_ps, 0) AS tflops_per_s,
  -- Of a copy or fusion bytes read and written, of pages keys and values; at the median.
  s.bytes * 1000 / NULLIF(s.median_ps, 0) AS gbps,
  -- Of copies, fusions and pages in HBM: the share of the peak that gbps is; NULL where the peak is not known.
  CASE
    WHEN s.class IN ('hbm', 'paged') THEN s.bytes * 1000 / NULLIF(s.median_ps, 0) / NULLIF(d.peak_hbm_gbps, 0)
  END AS hbm_share,
  -- Of products in bf16 and of flash attention: the share of the peak that tflops_per_s is; NULL where it is not known.
  CASE
    WHEN s.class IN ('bfloat16', 'flash')
      THEN CAST(s.flops AS DOUBLE) * 1e12 / NULLIF(s.median_ps, 0) / NULLIF(d.peak_flops_per_s, 0)
  END AS peak_share
FROM sized AS s
LEFT JOIN main.devices AS d USING (run_id, device_id);

CREATE VIEW metrics.communication_time_v1 AS WITH united AS (
  SELECT run_id, w.phase, w.device_id, SUM(w.new_ps) AS window_ps, COUNT(*) AS collectives
  FROM models.communication_windows AS w
  INNER JOIN models.counted_collectives USING (run_id, event_id)
  GROUP BY run_id, w.phase, w.device_id
)

SELECT
  u.run_id, u.phase, u.device_id,
  u.window_ps / (COALESCE(s.timed_steps, 1) * 1e9) AS communication_time_ms, -- Time per step.
  u.window_ps / 1e9 AS total_ms, -- Time over these steps.
  u.collectives, -- Executions of collectives.
  COALESCE(s.timed_steps, 1) AS steps -- Steps of the phase on the device that count; 1 if there are none.
FROM united AS u
LEFT JOIN models.phase_steps AS s
  ON u.run_id = s.run_id AND u.device_id = s.device_id AND u.phase IS NOT DISTINCT FROM s.phase;

CREATE VIEW metrics.communication_time AS SELECT run_id, phase, device_id, communication_time_ms, total_ms, collectives, steps FROM metrics.communication_time_v1;

CREATE VIEW metrics.exposed_communication_v1 AS WITH exposed AS (
  SELECT run_id, phase, device_id, kind, axis, SUM(exposed_added_ps) AS exposed_communication_ps
  FROM models.counted_collectives
  WHERE exposed_added_ps IS NOT NULL
  GROUP BY run_id, phase, device_id, kind, axis
)

SELECT
  e.run_id, e.phase, e.device_id, e.kind, e.axis,
  e.exposed_communication_ps / (COALESCE(s.timed_steps, 1) * 1e9) AS exposed_ms, -- Exposed time per step.
  e.exposed_communication_ps / 1e9 AS total_ms, -- Exposed time over these steps.
  COALESCE(s.timed_steps, 1) AS steps -- Steps of the phase on the device that count; 1 if there are none.
FROM exposed AS e
LEFT JOIN models.phase_steps AS s
  ON e.run_id = s.run_id AND e.device_id = s.device_id AND e.phase IS NOT DISTINCT FROM s.phase;

CREATE VIEW metrics.exposed_communication AS SELECT run_id, phase, device_id, kind, axis, exposed_ms, total_ms, steps FROM metrics.exposed_communication_v1;

CREATE VIEW metrics.sync_wait_v1 AS WITH waited AS (
  SELECT
    run_id, r.phase, r.device_id,
    SUM(r.wait_ps) AS wait_ps,
    COUNT(*) FILTER (WHERE r.is_partial) AS partial_collectives,
    COUNT(*) AS collectives
  FROM models.collective_ranks AS r
  LEFT JOIN models.predicted_runs AS g USING (run_id)
  WHERE (NOT r.is_partial OR r.ranks > 1) AND g.is_predicted IS NULL
  GROUP BY run_id, r.phase, r.device_id
)

SELECT
  w.run_id, w.phase, w.device_id,
  w.wait_ps / 1e9 AS wait_ms, -- Time waited.
  CASE WHEN w.partial_collectives > 0 THEN 'lower' END AS bound,
  -- Time waited per step; without steps the capture counts as one.
  w.wait_ps / (COALESCE(s.steps, 1) * 1e9) AS wait_ms_per_step,
  w.collectives -- Executions covered.
FROM waited AS w
LEFT JOIN models.phase_steps AS s
  ON w.run_id = s.run_id AND w.device_id = s.device_id AND w.phase IS NOT DISTINCT FROM s.phase;

CREATE VIEW metrics.sync_wait AS SELECT run_id, phase, device_id, wait_ms, bound, wait_ms_per_step, collectives FROM metrics.sync_wait_v1;

CREATE VIEW models.collective_parts AS WITH steps AS (
  SELECT run_id, phase, SUM(timed_steps) AS steps
  FROM models.phase_steps
  GROUP BY run_id, phase
),

times AS (
  SELECT
    run_id, r.phase, r.kind, r.axis,
    SUM(r.transfer_ps) AS transfer_ps,
    SUM(r.wait_ps) AS wait_ps,
    SUM(r.window_ps - r.transfer_ps - r.wait_ps) AS rest_ps,
    SUM(r.exposed_added_ps) AS exposed_ps
  FROM models.collective_ranks AS r
  INNER JOIN models.counted_collectives USING (run_id, event_id)
  WHERE NOT r.is_partial AND NOT r.is_fused
  GROUP BY run_id, r.phase, r.kind, r.axis
),

parts AS (
  SELECT run_id, phase, kind, axis, 'transfer' AS part, 0 AS position, transfer_ps AS time_ps
  FROM times
  UNION ALL
  SELECT run_id, phase, kind, axis, 'waiting' AS part, 1 AS position, wait_ps AS time_ps
  FROM times
  UNION ALL
  SELECT run_id, phase, kind, axis, 'rest of the window' AS part, 2 AS position, rest_ps AS time_ps
  FROM times
  UNION ALL
  SELECT run_id, phase, kind, axis, 'exposed' AS part, 3 AS position, exposed_ps AS time_ps
  FROM times
)

SELECT
  p.run_id, -- The run.
  p.phase, -- Phase; NULL in a step without one, outside before the first and after the last.
  p.kind, -- Kind of collective.
  p.axis, -- Mesh axes of its groups.
  p.part, -- transfer, waiting, rest of the window, or exposed.
  p.position, -- Position of the part, from 0.
  SUM(p.time_ps) / (COALESCE(MIN(s.steps), 1) * 1e9) AS mean_ms -- Time per step; outside of steps, in all.
FROM parts AS p
LEFT JOIN steps AS s ON p.run_id = s.run_id AND p.phase IS NOT DISTINCT FROM s.phase
GROUP BY p.run_id, p.phase, p.kind, p.axis, p.part, p.position;

CREATE VIEW models.collective_work AS WITH counted AS (
  SELECT
    run_id, device_id, phase, kind, axis,
    COUNT(*) AS executions,
    COUNT(message_bytes) AS sized_executions,
    CAST(SUM(message_bytes) AS BIGINT) AS message_bytes,
    CASE WHEN COUNT(wire_bytes) = COUNT(*) THEN CAST(SUM(wire_bytes) AS BIGINT) END AS wire_bytes
  FROM main.collectives
  GROUP BY run_id, device_id, phase, kind, axis
)

SELECT
  n.run_id, n.device_id, n.phase, n.kind, n.axis,
  COALESCE(s.steps, 1) AS steps, -- Steps of the phase on the device; 1 if there are none.
  n.executions, -- Executions on the device.
  n.sized_executions, -- Executions whose message size is known.
  n.message_bytes, -- Message bytes of these; NULL if none is known.
  n.wire_bytes -- Bytes that the device sends; NULL unless known for all executions.
FROM counted AS n
LEFT JOIN models.phase_steps AS s
  ON n.run_id = s.run_id AND n.device_id = s.device_id AND n.phase IS NOT DISTINCT FROM s.phase;

CREATE VIEW models.ccl_card AS WITH counted AS (
  SELECT run_id, COUNT(*) AS steps
  FROM models.run_steps
  GROUP BY run_id
)

SELECT
  run_id,
  COALESCE(NULLIF(LOWER(r.card ->> '$.workload.model.phase'), ''), 'inference') AS phase, -- training or inference.
  -- Iterations in the trace, or else steps of the run; NULL without any.
  COALESCE(CAST(NULLIF(r.card ->> '$.workload.model.iteration', '') AS BIGINT), n.steps) AS iterations,
  -- Tokens generated per sequence.
  COALESCE(CAST(NULLIF(r.card ->> '$.workload.data.output_len', '') AS BIGINT), r.output_length) AS output_length,
  -- Chips of the whole run.
  COALESCE(CAST(NULLIF(r.card ->> '$.workload.hardware.xpu_spec.total_count', '') AS BIGINT), c.chips) AS chips,
  -- Chip as CCL-Bench writes it, such as tpu_v6e; for other chips than TPUs, the kind of the devices.
  COALESCE(
    NULLIF(LOWER(r.card ->> '$.workload.hardware.xpu_spec.model'), ''),
    CASE
      WHEN LOWER(c.kind) IN ('tpu v6 lite', 'tpu v6e') THEN 'tpu_v6e'
      WHEN LOWER(c.kind) IN ('tpu v5 lite', 'tpu v5e') THEN 'tpu_v5e'
      WHEN LOWER(c.kind) IN ('tpu v5', 'tpu v5p') THEN 'tpu_v5p'
      WHEN LOWER(c.kind) = 'tpu v4' THEN 'tpu_v4'
      WHEN LOWER(c.kind) IN ('tpu7x', 'tpu v7x') THEN 'tpu_v7x'
      ELSE c.kind
    END
  ) AS hardware,
  -- The same as the card alone says it; NULL if it does not.
  NULLIF(LOWER(r.card ->> '$.workload.model.phase'), '') AS stated_phase,
  COALESCE(CAST(NULLIF(r.card ->> '$.workload.hardware.xpu_spec.total_count', '') AS BIGINT), 1) AS gpus, -- Chips, or 1.
  -- Parameters that each token meets, without the embedding.
  COALESCE(r.num_params_active, r.num_params) - COALESCE(r.num_params_embedding, 0) AS parameters,
  -- Layers times width of a head times heads times length of a sequence.
  r.num_layers * r.head_dim * r.num_heads
  * COALESCE(CAST(NULLIF(r.card ->> '$.workload.data.seq_len', '') AS BIGINT), 1) AS attention_parameters,
  -- Tokens of a step as CCL-Bench counts them: sequences times their length.
  COALESCE(CAST(NULLIF(r.card ->> '$.workload.data.batch_size', '') AS BIGINT), 1)
  * COALESCE(CAST(NULLIF(r.card ->> '$.workload.data.seq_len', '') AS BIGINT), 1) AS tokens
FROM main.runs AS r
LEFT JOIN counted AS n USING (run_id)
LEFT JOIN models.run_chips AS c USING (run_id);

CREATE VIEW models.decode_contexts AS WITH servers AS (
  SELECT run_id, COUNT(DISTINCT "rank") AS ranks
  FROM main.step_batches
  GROUP BY run_id
),

followed AS (
  SELECT
    run_id, step, requests, min_kv_length, prefill_tokens, decode_tokens,
    CASE
      WHEN
        requests = LAG(requests) OVER (PARTITION BY run_id, "rank" ORDER BY position)
        AND min_kv_length = LAG(min_kv_length) OVER (PARTITION BY run_id, "rank" ORDER BY position) + 1
        THEN LAG(step) OVER (PARTITION BY run_id, "rank" ORDER BY position)
    END AS continued_step
  FROM main.step_batches
),

contexts AS (
  SELECT
    run_id, step,
    SUM(requests) AS requests,
    SUM(decode_tokens) AS decode_tokens,
    SUM(requests * min_kv_length) AS context_tokens,
    CASE
      WHEN COUNT(continued_step) = COUNT(*) AND MIN(continued_step) = MAX(continued_step) THEN MIN(continued_step)
    END AS continued_step
  FROM followed
  WHERE step IS NOT NULL
  GROUP BY run_id, step
  HAVING
    COUNT(*) FILTER (WHERE requests IS NULL OR min_kv_length IS NULL OR COALESCE(decode_tokens, 0) = 0) = 0
    AND SUM(COALESCE(prefill_tokens, 0)) = 0
),

timed AS (
  SELECT
    run_id, step, c.requests, r.ranks, c.decode_tokens, c.context_tokens, s.start_ps, s.longest_ps,
    CASE
      WHEN
        c.continued_step = LAG(step) OVER (PARTITION BY run_id ORDER BY s.start_ps, step)
        AND c.requests = LAG(c.requests) OVER (PARTITION BY run_id ORDER BY s.start_ps, step)
        THEN 0
      ELSE 1
    END AS begins
  FROM contexts AS c
  INNER JOIN servers AS r USING (run_id)
  INNER JOIN models.run_steps AS s USING (run_id, step)
  WHERE s.is_timed AND COALESCE(s.phase, 'decode') = 'decode'
),

stretched AS (
  SELECT
    *,
    SUM(begins)
      OVER (PARTITION BY run_id ORDER BY start_ps, step ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS stretch
  FROM timed
)

SELECT
  run_id, step,
  CAST(requests AS BIGINT) AS requests, -- Requests of the step, of all data-parallel ranks.
  ranks, -- Data-parallel ranks of the server, those of other steps included.
  CAST(decode_tokens AS BIGINT) AS decode_tokens, -- Tokens that it computes.
  CAST(context_tokens AS BIGINT) AS context_tokens, -- Tokens of context that all of them have together, at least.
  longest_ps, -- Time of the step on the slowest device, start to next start.
  CAST(stretch AS BIGINT) AS stretch, -- Number of its stretch in the run.
  COUNT(*) OVER (PARTITION BY run_id, stretch) AS stretch_steps, -- Steps of the stretch.
  ROW_NUMBER() OVER (PARTITION BY run_id, stretch ORDER BY start_ps, step) - 1 AS stretch_position -- Its place there, from 0.
FROM stretched;

CREATE VIEW models.device_pauses AS WITH devices AS (
  SELECT run_id, device_id, MIN(first_start_ps) AS first_start_ps, MAX(last_end_ps) AS last_end_ps
  FROM models.execution_ops
  GROUP BY run_id, device_id
),

runs AS (
  SELECT run_id, MIN(start_ps) AS first_step_ps, MAX(until_ps) AS last_step_ps
  FROM models.run_steps
  GROUP BY run_id
),

bounds AS (
  SELECT run_id, d.device_id, d.first_start_ps, d.last_end_ps, r.first_step_ps, r.last_step_ps
  FROM devices AS d
  INNER JOIN runs AS r USING (run_id)
)

SELECT
  run_id, device_id,
  start_ps - idle_before_ps AS start_ps, -- Start of the pause.
  start_ps AS end_ps, -- End of the pause, exclusive.
  event_id, -- The op that ends it; NULL before the first op and after the last.
  phase, -- Phase of that op; NULL in a step without one, outside before the first and after the last.
  step, -- Step of that op; NULL outside of steps.
  execution, -- Execution of a program on the device to which that op belongs; NULL if unknown.
  op_class -- What the device does in that op - communication, copy or compute.
FROM models.leaf_ops
WHERE idle_before_ps > 1000000
UNION ALL
SELECT
  run_id, device_id,
  first_step_ps AS start_ps,
  first_start_ps AS end_ps,
  NULL AS event_id,
  NULL AS phase,
  NULL AS step,
  NULL AS execution,
  NULL AS op_class
FROM bounds
WHERE first_start_ps - first_step_ps > 1000000
UNION ALL
SELECT
  run_id, device_id,
  last_end_ps AS start_ps,
  last_step_ps AS end_ps,
  NULL AS event_id,
  NULL AS phase,
  NULL AS step,
  NULL AS execution,
  NULL AS op_class
FROM bounds
WHERE last_step_ps - last_end_ps > 1000000;

CREATE VIEW models.instruction_time AS WITH placed AS (
  SELECT
    run_id, o.device_id, o.phase, o.instruction_id, o.iteration, o.flops, o.model_flops,
    o.bytes_accessed, o.self_ps,
    COALESCE(s.is_timed, FALSE) AS is_timed
  FROM models.leaf_ops AS o
  LEFT JOIN models.run_steps AS s USING (run_id, step)
),

summed AS (
  SELECT
    run_id, device_id, phase, instruction_id, iteration, flops, model_flops, bytes_accessed,
    COUNT(*) AS ops,
    SUM(self_ps) AS self_ps,
    COUNT(*) FILTER (WHERE is_timed) AS timed_ops,
    COALESCE(SUM(self_ps) FILTER (WHERE is_timed), 0) AS timed_self_ps
  FROM placed
  GROUP BY run_id, device_id, phase, instruction_id, iteration, flops, model_flops, bytes_accessed
),

layered AS (
  SELECT
    run_id, device_id, t.phase, instruction_id,
    CASE
      WHEN l.layers_per_iteration IS NULL THEN l.first_layer
      ELSE l.first_layer + t.iteration * l.layers_per_iteration
    END AS layer,
    t.flops, t.model_flops, t.bytes_accessed, t.ops, t.self_ps, t.timed_ops, t.timed_self_ps
  FROM summed AS t
  LEFT JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id)
)

SELECT
  run_id, t.device_id, t.phase, instruction_id, t.layer, i.category,
  i.op_class, -- What the device does in them - communication, copy or compute.
  i.part,
  t.flops, -- Floating-point operations of each; NULL if unknown.
  t.model_flops, -- The same, without work that the compiler added.
  t.bytes_accessed, -- Memory traffic of each; NULL if unknown.
  -- The part of it in HBM; all of it if the profiler does not split it by memory.
  CASE
    WHEN i.given_bytes_accessed IS NULL AND t.bytes_accessed = COALESCE(i.bytes_accessed, t.bytes_accessed)
      THEN COALESCE(i.hbm_bytes_accessed, t.bytes_accessed)
    ELSE t.bytes_accessed
  END AS hbm_bytes_accessed,
  -- The part in memories on the chip; NULL if the profiler does not split it.
  CASE
    WHEN i.given_bytes_accessed IS NULL AND t.bytes_accessed = COALESCE(i.bytes_accessed, t.bytes_accessed)
      THEN i.on_chip_bytes_accessed
  END AS on_chip_bytes_accessed,
  -- Type whose peak applies to a matrix product: int8, fp8, or bf16 for all wider types.
  CASE
    WHEN i.operand_dtype IN ('s8', 'u8') THEN 'int8'
    WHEN i.operand_dtype LIKE 'f8%' THEN 'fp8'
    WHEN i.operand_dtype IS NOT NULL THEN 'bf16'
  END AS product_type,
  CAST(SUM(t.ops) AS BIGINT) AS ops, -- Number of leaf ops.
  CAST(SUM(t.self_ps) AS BIGINT) AS self_ps, -- Their self time.
  CAST(SUM(t.timed_ops) AS BIGINT) AS timed_ops, -- Those in steps whose time is known (models.run_steps).
  CAST(SUM(t.timed_self_ps) AS BIGINT) AS timed_self_ps -- Their self time.
FROM layered AS t
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
GROUP BY
  run_id, t.device_id, t.phase, instruction_id, t.layer, t.flops, t.model_flops, t.bytes_accessed, i.category,
  i.op_class, i.part, i.given_bytes_accessed, i.bytes_accessed, i.hbm_bytes_accessed, i.on_chip_bytes_accessed,
  i.operand_dtype;

CREATE VIEW models.phase_tokens AS WITH phases AS (
  SELECT
    run_id, phase,
    COUNT(*) AS all_steps,
    COUNT(*) FILTER (WHERE is_timed) AS steps,
    SUM(longest_ps) FILTER (WHERE is_timed) AS time_ps
  FROM models.run_steps
  WHERE phase IN ('prefill', 'decode', 'mixed')
  GROUP BY run_id, phase
),

served AS (
  SELECT run_id, s.phase, COUNT(*) AS steps, CAST(SUM(t.prefill_tokens + t.decode_tokens) AS BIGINT) AS tokens
  FROM models.run_steps AS s
  INNER JOIN models.step_tokens AS t USING (run_id, step)
  WHERE s.is_timed
  GROUP BY run_id, s.phase
),

counted AS (
  SELECT
    run_id, phase, p.steps, p.time_ps,
    CASE
      WHEN v.steps = p.steps THEN v.tokens
      WHEN p.phase = 'decode' THEN CAST(r.batch_size AS BIGINT) * p.steps
      WHEN p.phase = 'prefill' AND p.all_steps = 1 THEN CAST(r.batch_size AS BIGINT) * r.input_length
    END AS tokens
  FROM phases AS p
  INNER JOIN main.runs AS r USING (run_id)
  LEFT JOIN served AS v USING (run_id, phase)
)

SELECT
  run_id,
  phase, -- prefill, decode, or mixed.
  steps, -- Steps of the phase that count.
  CAST(time_ps AS BIGINT) AS time_ps, -- Their time on the slowest device.
  tokens -- Tokens that they compute.
FROM counted
WHERE tokens > 0 AND time_ps > 0;

CREATE VIEW models.served_output AS WITH placed AS (
  SELECT
    run_id, step, phase, start_ps,
    MIN(CASE WHEN phase = 'prefill' THEN start_ps END) OVER (PARTITION BY run_id) AS first_ps,
    MAX(CASE WHEN phase IN ('decode', 'mixed') THEN start_ps END) OVER (PARTITION BY run_id) AS last_ps
  FROM models.run_steps
),

told AS (
  SELECT
    run_id, step, t.prefill_tokens, t.decode_tokens,
    LEAD(t.decode_tokens) OVER (PARTITION BY run_id ORDER BY p.start_ps, step) AS next_decode_tokens
  FROM placed AS p
  LEFT JOIN models.step_tokens AS t USING (run_id, step)
  WHERE p.start_ps >= p.first_ps AND p.start_ps <= p.last_ps
)

SELECT
  run_id,
  CAST(SUM(prefill_tokens) AS BIGINT) AS prefill_tokens, -- Tokens of prompts.
  CAST(SUM(decode_tokens) AS BIGINT) AS decode_tokens, -- Tokens of requests that generate.
  CAST(
    SUM(
      CASE WHEN prefill_tokens > 0 THEN GREATEST(COALESCE(next_decode_tokens, 0) - decode_tokens, 0) ELSE 0 END
    ) AS BIGINT
  ) AS first_tokens -- First tokens of prompts, at least.
FROM told
GROUP BY run_id
HAVING COUNT(decode_tokens) = COUNT(*);

CREATE VIEW metrics.pipeline_bubble_v1 AS WITH waited AS (
  SELECT run_id, device_id, phase, SUM(exposed_added_ps) AS waited_ps
  FROM main.collectives
  WHERE axis = 'pp' AND step IS NOT NULL
  GROUP BY run_id, device_id, phase
),

piped AS (
  SELECT run_id
  FROM waited
  GROUP BY run_id
),

ticking AS (
  SELECT run_id, device_id, phase, SUM(last_end_ps - first_start_ps) AS span_ps, SUM(busy_ps) AS busy_ps
  FROM models.device_busy
  WHERE step IS NOT NULL
  GROUP BY run_id, device_id, phase
),

compared AS (
  SELECT
    run_id, t.phase, t.span_ps,
    COALESCE(v.waited_ps, 0) AS waited_ps,
    t.span_ps - t.busy_ps + COALESCE(v.waited_ps, 0) AS bubble_ps,
    CAST(r.pp AS BIGINT) AS stages,
    CAST(r.microbatches AS BIGINT) AS microbatches
  FROM ticking AS t
  INNER JOIN main.runs AS r USING (run_id)
  INNER JOIN piped USING (run_id)
  LEFT JOIN waited AS v ON t.run_id = v.run_id AND t.device_id = v.device_id AND t.phase IS NOT DISTINCT FROM v.phase
  WHERE r.pp > 1 AND t.span_ps > 0
)

SELECT
  run_id, phase,
  SUM(bubble_ps) / SUM(span_ps) AS bubble_ratio, -- Share of the time without work, all devices together.
  MAX(bubble_ps / span_ps) AS max_ratio, -- The highest of a device.
  -- The ideal share; NULL if the number of microbatches is not known.
  (MIN(stages) - 1) / NULLIF(MIN(microbatches + stages) - 1, 0) AS ideal_ratio,
  SUM(waited_ps) / SUM(span_ps) AS waiting_ratio, -- Share of the time in exposed collectives on axis pp.
  MIN(stages) AS stages, -- Size of the pipeline-parallel axis.
  MIN(microbatches) AS microbatches, -- Microbatches per step.
  COUNT(*) AS devices -- Devices that ran the phase.
FROM compared
GROUP BY run_id, phase;

CREATE VIEW metrics.pipeline_bubble AS SELECT run_id, phase, bubble_ratio, max_ratio, ideal_ratio, waiting_ratio, stages, microbatches, devices FROM metrics.pipeline_bubble_v1;

CREATE VIEW models.device_phases AS WITH busy AS (
  SELECT
    run_id, device_id, phase,
    step IS NOT NULL AS is_in_step,
    CAST(SUM(busy_ps) AS BIGINT) AS busy_ps,
    CAST(SUM(compute_ps) AS BIGINT) AS compute_ps
  FROM models.device_busy
  GROUP BY run_id, device_id, phase, step IS NOT NULL
),

runs_with_steps AS (
  SELECT run_id, TRUE AS is_stepped
  FROM models.phase_steps
  GROUP BY run_id
),

devices_with_ops AS (
  SELECT run_id, device_id
  FROM busy
  GROUP BY run_id, device_id
)

SELECT
  run_id, device_id, s.phase,
  s.steps, -- Steps of the phase on the device; NULL without steps.
  COALESCE(i.busy_ps, 0) AS busy_ps, -- Union of its leaf ops.
  COALESCE(i.compute_ps, 0) AS compute_ps -- Union of its leaf ops that are neither communication nor copies.
FROM models.phase_steps AS s
INNER JOIN devices_with_ops USING (run_id, device_id)
LEFT JOIN busy AS i
  ON s.run_id = i.run_id AND s.device_id = i.device_id AND i.is_in_step AND s.phase IS NOT DISTINCT FROM i.phase
UNION ALL
SELECT
  run_id, o.device_id, o.phase,
  NULL AS steps,
  o.busy_ps, o.compute_ps
FROM busy AS o
LEFT JOIN runs_with_steps AS w USING (run_id)
WHERE w.is_stepped IS NULL;

CREATE VIEW models.prefill_work AS WITH timed AS (
  SELECT run_id, step, MAX(last_end_ps) - MIN(first_start_ps) AS time_ps
  FROM models.device_busy
  WHERE phase = 'prefill'
  GROUP BY run_id, step
),

scheduled AS (
  SELECT
    run_id, step,
    SUM(prefill_tokens) AS tokens,
    COUNT(*) - COUNT(prefill_tokens) AS unknown,
    SUM(COALESCE(decode_tokens, 0)) AS decode_tokens
  FROM main.step_batches
  WHERE step IS NOT NULL
  GROUP BY run_id, step
),

of_batches AS (
  SELECT run_id, SUM(s.tokens) AS tokens, SUM(t.time_ps) AS time_ps, COUNT(*) AS steps
  FROM timed AS t
  INNER JOIN scheduled AS s USING (run_id, step)
  WHERE s.unknown = 0 AND s.decode_tokens = 0 AND s.tokens > 0
  GROUP BY run_id
),

single AS (
  SELECT run_id, SUM(time_ps) AS time_ps
  FROM timed
  GROUP BY run_id
  HAVING COUNT(*) = 1
),

counted AS (
  SELECT run_id, tokens, time_ps, steps, 'batches' AS token_source
  FROM of_batches
  UNION ALL
  SELECT
    run_id,
    CAST(r.batch_size AS BIGINT) * r.input_length AS tokens,
    p.time_ps,
    1 AS steps,
    'lengths' AS token_source
  FROM single AS p
  INNER JOIN main.runs AS r USING (run_id)
  LEFT JOIN of_batches AS b USING (run_id)
  WHERE b.run_id IS NULL AND r.batch_size * r.input_length > 0
)

SELECT
  run_id,
  CAST(tokens AS BIGINT) AS tokens, -- Prompt tokens.
  CAST(time_ps AS BIGINT) AS time_ps, -- Time of the steps.
  steps, -- Prefill steps that count.
  token_source -- batches (what the server scheduled) or lengths (batch size and input length).
FROM counted
WHERE time_ps > 0;

CREATE VIEW models.step_parts AS WITH computed AS (
  SELECT
    run_id, o.device_id, o.step,
    SUM(o.class_busy_ps) FILTER (WHERE c.class = 'matrix') AS matrix_ps,
    SUM(o.class_busy_ps) FILTER (WHERE c.class = 'attention') AS attention_ps,
    SUM(o.class_busy_ps) FILTER (WHERE o.op_class = 'copy') AS copy_ps
  FROM models.leaf_ops AS o
  INNER JOIN models.instruction_classes AS c USING (run_id, instruction_id)
  WHERE o.step IS NOT NULL AND (c.class IN ('matrix', 'attention') OR o.op_class = 'copy')
  GROUP BY run_id, o.device_id, o.step
),

exposed AS (
  SELECT run_id, device_id, step, SUM(exposed_added_ps) AS exposed_ps
  FROM main.collectives
  WHERE step IS NOT NULL
  GROUP BY run_id, device_id, step
),

measured AS (
  SELECT
    run_id, step, s.phase, s.step_ps,
    COALESCE(c.matrix_ps, 0) AS matrix_ps,
    COALESCE(c.attention_ps, 0) AS attention_ps,
    COALESCE(b.compute_ps, 0) - COALESCE(c.matrix_ps, 0) - COALESCE(c.attention_ps, 0) AS other_ps,
    COALESCE(b.busy_ps, 0) AS busy_ps,
    COALESCE(c.copy_ps, 0) AS copy_ps,
    -- Busy without computing, which communication and copies share.
    COALESCE(b.busy_ps - b.compute_ps, 0) AS moving_ps,
    COALESCE(e.exposed_ps, 0) AS exposed_ps
  FROM models.steps AS s
  LEFT JOIN models.device_busy AS b USING (run_id, device_id, step)
  LEFT JOIN computed AS c USING (run_id, device_id, step)
  LEFT JOIN exposed AS e USING (run_id, device_id, step)
  WHERE s.clock = 'device' AND s.is_timed
),

divided AS (
  SELECT
    *,
    -- Ops that no row of collectives has, such as one without its start, communicate too.
    LEAST(copy_ps, GREATEST(moving_ps - exposed_ps, 0)) AS waiting_ps
  FROM measured
),

summed AS (
  SELECT
    run_id, step, phase,
    COUNT(*) AS devices,
    SUM(matrix_ps) AS matrix_ps,
    SUM(attention_ps) AS attention_ps,
    SUM(other_ps) AS other_ps,
    SUM(waiting_ps) AS waiting_ps,
    SUM(moving_ps - waiting_ps) AS exposed_ps,
    GREATEST(SUM(step_ps - busy_ps), 0) AS idle_ps
  FROM divided
  GROUP BY run_id, step, phase
),

parts AS (
  SELECT run_id, step, phase, devices, 'matrix' AS part, 0 AS position, matrix_ps AS time_ps
  FROM summed
  UNION ALL
  SELECT run_id, step, phase, devices, 'attention' AS part, 1 AS position, attention_ps AS time_ps
  FROM summed
  UNION ALL
  SELECT run_id, step, phase, devices, 'other compute' AS part, 2 AS position, other_ps AS time_ps
  FROM summed
  UNION ALL
  SELECT run_id, step, phase, devices, 'waiting for copies' AS part, 3 AS position, waiting_ps AS time_ps
  FROM summed
  UNION ALL
  SELECT run_id, step, phase, devices, 'exposed communication' AS part, 4 AS position, exposed_ps AS time_ps
  FROM summed
  UNION ALL
  SELECT run_id, step, phase, devices, 'idle' AS part, 5 AS position, idle_ps AS time_ps
  FROM summed
)

SELECT
  run_id, step, phase,
  part, -- matrix, attention, other compute, waiting for copies, exposed communication, or idle.
  position, -- Position of the part, from 0.
  -- Time of all devices in the part. Exposed communication is time in which the op line runs a collective, or the start
  -- or done of one. Idle is 0 if ops reach beyond the steps by more than the idle time.
  CAST(time_ps AS BIGINT) AS time_ps,
  time_ps / (devices * 1e9) AS mean_ms -- Mean over the devices that ran the step.
FROM parts;

CREATE VIEW models.timed_spans AS WITH runs_with_steps AS (
  SELECT run_id, TRUE AS is_stepped
  FROM models.phase_steps
  GROUP BY run_id
),

devices_with_ops AS (
  SELECT run_id, device_id
  FROM models.device_busy
  GROUP BY run_id, device_id
)

SELECT
  run_id, device_id,
  s.phase, -- Phase; NULL for a step without one, and in a capture without steps.
  step, -- Step; NULL in a capture without steps.
  s.step_ps AS span_ps, -- The time.
  COALESCE(b.busy_ps, 0) AS busy_ps, -- Union of the leaf ops that belong to it.
  -- A last step, which counts because the phase has no other; the wait after it is missing from the time.
  s.is_last
FROM models.steps AS s
INNER JOIN devices_with_ops USING (run_id, device_id)
LEFT JOIN models.device_busy AS b USING (run_id, device_id, step)
WHERE s.is_timed
UNION ALL
SELECT
  run_id, b.device_id, b.phase, b.step,
  b.last_end_ps - b.first_start_ps AS span_ps,
  b.busy_ps,
  FALSE AS is_last
FROM models.device_busy AS b
LEFT JOIN runs_with_steps AS w USING (run_id)
WHERE w.is_stepped IS NULL;

CREATE VIEW preconditions.prefill_ops AS SELECT run_id FROM models.device_busy WHERE phase = 'prefill' AND last_end_ps > first_start_ps;

CREATE VIEW metrics.e2e_latency_v1 AS SELECT
  run_id, clock,
  (decode_end_ps - prefill_start_ps) / 1e9 AS e2e_latency_ms, -- Time from start to end.
  decode_steps -- Decode steps in it.
FROM models.request_times
WHERE prefill_steps = 1 AND mixed_steps = 0 AND decode_end_ps IS NOT NULL;

CREATE VIEW metrics.e2e_latency AS SELECT run_id, clock, e2e_latency_ms, decode_steps FROM metrics.e2e_latency_v1;

CREATE VIEW metrics.microbenchmarks_v1 AS SELECT
  run_id,
  program, -- Name of the program.
  kind, -- collective, product, fusion, copy, attention or host.
  -- Of collectives the kind that ran, of products the type, of fusions and copies the memory; the attention kernel.
  class,
  axis,
  -- Bytes of a collective's message or of a copy, rows x inner length x columns of a product, shape of a fusion,
  -- sequences x heads x tokens x width of attention (over pages, heads of keys), or arguments of a program.
  what,
  chip, -- Kind of the device.
  value_us, -- Median time.
  low_us, -- 10th percentile.
  high_us, -- 90th percentile.
  n, -- Number of times, over all devices or groups.
  tflops_per_s, -- Of a product, and of flash attention: its rate at the median.
  gbps, -- Of a copy or fusion bytes read and written, of pages keys and values; at the median.
  hbm_share, -- Of copies, fusions and pages in HBM: the share of the peak that gbps is; NULL where the peak is not known.
  -- Of products in bf16 and of flash attention: the share of the peak that tflops_per_s is; NULL where it is not known.
  peak_share
FROM models.microbenchmark_rates;

CREATE VIEW metrics.microbenchmarks AS SELECT run_id, program, kind, class, axis, what, chip, value_us, low_us, high_us, n, tflops_per_s, gbps, hbm_share, peak_share FROM metrics.microbenchmarks_v1;

CREATE VIEW models.calibration_rates AS WITH ranked AS (
  SELECT
    *,
    ROW_NUMBER() OVER (PARTITION BY run_id, kind, class ORDER BY value_us DESC, what) AS from_longest,
    ROW_NUMBER() OVER (PARTITION BY run_id, kind, class ORDER BY value_us, what) AS from_shortest,
    -- the profiler calls v5e and v6e light ones
    CASE
      WHEN LOWER(chip) = 'tpu v5 lite' THEN 'v5e'
      WHEN LOWER(chip) = 'tpu v6 lite' THEN 'v6e'
      WHEN LOWER(chip) = 'tpu7x' THEN 'tpu7x'
      ELSE REGEXP_EXTRACT(LOWER(chip), '^tpu (v[0-9][a-z]?)$', 1)
    END AS generation
  FROM models.microbenchmark_rates
  WHERE chip LIKE 'TPU%'
),

paged AS (
  SELECT
    l.run_id, l.generation, l.n, l.value_us / l.high_us AS at_high, l.value_us / NULLIF(l.low_us, 0) AS at_low,
    c.hbm_share * l.gbps / l.hbm_share AS stream_gbps,
    s.value_us AS short_us, s.gbps * s.value_us AS short_kb,
    CAST(REGEXP_EXTRACT(s.what, '^([0-9]+)x', 1) AS BIGINT) AS sequences,
    (l.gbps * l.value_us - s.gbps * s.value_us) / (l.value_us - s.value_us) AS gbps
  FROM ranked AS l
  INNER JOIN ranked AS s USING (run_id)
  INNER JOIN ranked AS c USING (run_id)
  WHERE
    l.class = 'paged' AND l.from_longest = 1 AND s.class = 'paged' AND s.from_shortest = 1
    AND l.value_us > s.value_us AND c.kind = 'copy' AND c.from_longest = 1
),

rates AS (
  SELECT
    run_id, generation, 'hbm' AS class, 'stream_share' AS what, n, hbm_share AS rate,
    hbm_share * value_us / high_us AS low, hbm_share * value_us / NULLIF(low_us, 0) AS high
  FROM ranked
  WHERE kind = 'copy' AND from_longest = 1 AND value_us > 0
  UNION ALL
  SELECT
    run_id, generation, 'small_op' AS class, 'vmem_ns' AS what, n, value_us * 1e3 AS rate, low_us * 1e3 AS low,
    high_us * 1e3 AS high
  FROM ranked
  WHERE kind = 'fusion' AND class = 'vmem' AND from_shortest = 1
  UNION ALL
  SELECT
    run_id, generation, 'small_op' AS class, 'hbm_us' AS what, n, value_us AS rate, low_us AS low, high_us AS high
  FROM ranked
  WHERE kind = 'fusion' AND class = 'hbm' AND from_shortest = 1
  UNION ALL
  SELECT
    run_id, generation, 'flash_attention' AS class, 'share' AS what, n, peak_share AS rate,
    peak_share * value_us / high_us AS low, peak_share * value_us / NULLIF(low_us, 0) AS high
  FROM ranked
  WHERE class = 'flash' AND from_longest = 1 AND value_us > 0
  UNION ALL
  SELECT
    run_id, generation, 'paged_attention' AS class, 'share' AS what, n, gbps / stream_gbps AS rate,
    gbps / stream_gbps * at_high AS low, gbps / stream_gbps * at_low AS high
  FROM paged
  UNION ALL
  SELECT
    run_id, generation, 'paged_attention' AS class, 'sequence_ns' AS what, n,
    (short_us - short_kb / gbps) * 1e3 / sequences AS rate,
    (short_us - short_kb / gbps) * 1e3 / sequences * at_high AS low,
    (short_us - short_kb / gbps) * 1e3 / sequences * at_low AS high
  FROM paged
)

SELECT
  r.run_id,
  'machine' AS kind, -- Kind of the row.
  r.generation AS chip, -- Generation, as topologies name it.
  r.class, -- What the rate is of.
  r.what, -- Its name, with its unit.
  r.rate AS "value", -- Median.
  r.low, -- What nine in ten reach: the rate at the 90th percentile of a time, or the 10th percentile of the rate.
  r.high, -- What one in ten reaches.
  r.n, -- Measurements.
  u.name AS source -- Name of the run.
FROM rates AS r
INNER JOIN main.runs AS u USING (run_id)
WHERE r.generation <> '' AND r.rate > 0 AND r.low > 0 AND r.high IS NOT NULL;

CREATE VIEW metrics.collective_count_v1 AS WITH ran AS (
  SELECT run_id, phase, device_id, MAX(steps) AS steps
  FROM models.collective_work
  GROUP BY run_id, phase, device_id
),

phases AS (
  SELECT run_id, phase, SUM(steps) AS steps
  FROM ran
  GROUP BY run_id, phase
)

SELECT
  w.run_id, w.phase, w.kind, w.axis,
  SUM(w.executions) / SUM(w.steps) AS executions_per_step, -- Mean over devices and steps.
  MIN(w.executions / w.steps) AS min_per_step, -- Mean over steps, on the device with the fewest.
  MAX(w.executions / w.steps) AS max_per_step, -- Mean over steps, on the device with the most.
  CAST(SUM(w.executions) AS BIGINT) AS executions,
  COUNT(*) AS devices,
  CAST(SUM(w.steps) AS BIGINT) AS device_steps, -- Steps of these devices together.
  -- Steps of all devices that take part in any collective of the phase. The executions of all kinds and axes over these
  -- are the collectives of a step.
  CAST(MIN(p.steps) AS BIGINT) AS phase_device_steps
FROM models.collective_work AS w
INNER JOIN phases AS p ON w.run_id = p.run_id AND w.phase IS NOT DISTINCT FROM p.phase
GROUP BY w.run_id, w.phase, w.kind, w.axis;

CREATE VIEW metrics.collective_count AS SELECT run_id, phase, kind, axis, executions_per_step, min_per_step, max_per_step, executions, devices, device_steps, phase_device_steps FROM metrics.collective_count_v1;

CREATE VIEW metrics.traffic_by_parallelism_v1 AS WITH carried AS (
  SELECT
    run_id, phase, axis, device_id,
    SUM(executions) AS executions,
    SUM(message_bytes) AS message_bytes,
    CASE WHEN COUNT(wire_bytes) = COUNT(*) THEN SUM(wire_bytes) END AS wire_bytes
  FROM models.collective_work
  GROUP BY run_id, phase, axis, device_id
),

summed AS (
  SELECT
    run_id, phase, axis,
    COUNT(*) AS devices,
    SUM(executions) AS executions,
    SUM(message_bytes) AS message_bytes,
    CASE WHEN COUNT(wire_bytes) = COUNT(*) THEN SUM(wire_bytes) END AS wire_bytes
  FROM carried
  GROUP BY run_id, phase, axis
),

shared AS (
  SELECT
    *,
    SUM(message_bytes) OVER (PARTITION BY run_id, phase) AS phase_bytes
  FROM summed
),

named AS (
  SELECT run_id, axis
  FROM summed
  GROUP BY run_id, axis
),

ranked AS (
  SELECT run_id, a.axis, m.source, m.confidence, m.evidence
  FROM named AS a
  INNER JOIN main.mesh_axes AS m USING (run_id)
  WHERE
    (m.axis = 'pp' AND a.axis LIKE '%pp%') OR (m.axis = 'dp' AND a.axis LIKE '%dp%')
    OR (m.axis = 'ep' AND a.axis LIKE '%ep%') OR (m.axis = 'tp' AND a.axis LIKE '%tp%')
    OR (m.axis = 'sp' AND a.axis LIKE '%sp%')
  QUALIFY ROW_NUMBER() OVER (PARTITION BY a.run_id, a.axis ORDER BY m.confidence, m."position") = 1
)

SELECT
  run_id, t.phase,
  axis, -- Mesh axes of the groups, such as tp or dp+tp; 'unknown' if no mesh fits, 'none' for groups of one device.
  t.message_bytes / t.devices AS message_bytes_per_device, -- Message bytes, mean over devices, as in traffic_volume.
  t.message_bytes / NULLIF(t.phase_bytes, 0) AS share, -- Share of the message bytes of the phase.
  -- Bytes sent, mean over devices; NULL unless known for all executions.
  t.wire_bytes / t.devices AS wire_bytes_per_device,
  CAST(t.executions AS BIGINT) AS executions,
  t.devices,
  r.source AS axis_source, -- mesh, or inferred; NULL for 'unknown' and 'none'.
  r.confidence, -- Probability that the name of the axis is right; 1 for a mesh, NULL for 'unknown' and 'none'.
  r.evidence -- Reasons for an inferred name; NULL for a mesh, 'unknown' and 'none'.
FROM shared AS t
LEFT JOIN ranked AS r USING (run_id, axis)
WHERE t.message_bytes IS NOT NULL;

CREATE VIEW metrics.traffic_by_parallelism AS SELECT run_id, phase, axis, message_bytes_per_device, share, wire_bytes_per_device, executions, devices, axis_source, confidence, evidence FROM metrics.traffic_by_parallelism_v1;

CREATE VIEW metrics.traffic_volume_v1 AS WITH ran AS (
  SELECT run_id, COUNT(DISTINCT device_id) AS devices
  FROM models.collective_work
  GROUP BY run_id
)

SELECT
  run_id, w.phase, w.kind, w.axis,
  SUM(w.message_bytes) / COUNT(*) AS message_bytes_per_device, -- Message bytes, mean over devices.
  SUM(w.message_bytes) / SUM(w.steps) AS message_bytes_per_step, -- Message bytes per step, mean over devices.
  -- Bytes sent, mean over devices; NULL if unknown, as in groups that are partly captured.
  CASE WHEN COUNT(w.wire_bytes) = COUNT(*) THEN SUM(w.wire_bytes) / COUNT(*) END AS wire_bytes_per_device,
  CAST(SUM(w.message_bytes) AS BIGINT) AS message_bytes, -- Message bytes of all devices.
  COUNT(*) AS devices,
  -- Devices that take part in any collective of the run. The message bytes of all rows over this number are the run's
  -- bytes per device.
  MIN(r.devices) AS run_devices,
  -- Executions whose message size is unknown; they are not counted here.
  CAST(SUM(w.executions - w.sized_executions) AS BIGINT) AS unsized_executions
FROM models.collective_work AS w
INNER JOIN ran AS r USING (run_id)
GROUP BY run_id, w.phase, w.kind, w.axis
HAVING SUM(w.sized_executions) > 0;

CREATE VIEW metrics.traffic_volume AS SELECT run_id, phase, kind, axis, message_bytes_per_device, message_bytes_per_step, wire_bytes_per_device, message_bytes, devices, run_devices, unsized_executions FROM metrics.traffic_volume_v1;

CREATE VIEW metrics.ccl_avg_step_time_v1 AS WITH marked AS (
  SELECT run_id, SUM(duration_ps) / (COUNT(*) * 1e12) AS avg_step_time_s, COUNT(*) AS steps
  FROM models.ccl_steps
  WHERE places <= 2 OR (file_place > 1 AND file_place < places)
  GROUP BY run_id
),

of_ranks AS (
  SELECT run_id, CAST(FLOOR(SUM(duration_ps) / COUNT(*) + 5e-1) AS BIGINT) AS step_ps, COUNT(*) AS steps
  FROM models.ccl_marks
  WHERE run_choice = 1 AND (places <= 2 OR (place > 1 AND place < places))
  GROUP BY run_id, host
),

on_gpus AS (
  SELECT run_id, SUM(step_ps) / (COUNT(*) * 1e12) AS avg_step_time_s, SUM(steps) AS steps
  FROM of_ranks
  GROUP BY run_id
),

events AS (
  SELECT run_id, start_ps, start_ps + duration_ps AS end_ps
  FROM main.ops
  UNION ALL
  SELECT run_id, start_ps, start_ps + duration_ps AS end_ps
  FROM main.host_events
),

spans AS (
  SELECT run_id, MAX(e.end_ps) - MIN(e.start_ps) AS span_ps
  FROM events AS e
  LEFT JOIN main.runs AS r USING (run_id)
  WHERE r.format IS NULL OR r.format NOT IN ('kineto', 'nsys')
  GROUP BY run_id
)

SELECT
  run_id,
  -- Mean duration, or the share of an iteration in the span.
  COALESCE(m.avg_step_time_s, ROUND(s.span_ps / (c.iterations * 1e12), 6)) AS avg_step_time_s,
  COALESCE(m.steps, c.iterations) AS steps, -- Events that it covers, or iterations.
  m.run_id IS NOT NULL AS has_marks -- It is read from events and not from the span.
FROM spans AS s
LEFT JOIN marked AS m USING (run_id)
LEFT JOIN models.ccl_card AS c USING (run_id)
WHERE m.run_id IS NOT NULL OR (c.iterations > 0 AND s.span_ps > 0)
UNION ALL
SELECT run_id, avg_step_time_s, CAST(steps AS BIGINT) AS steps, TRUE AS has_marks
FROM on_gpus;

CREATE VIEW metrics.ccl_avg_step_time AS SELECT run_id, avg_step_time_s, steps, has_marks FROM metrics.ccl_avg_step_time_v1;

CREATE VIEW metrics.ccl_mfu_v1 AS WITH timed AS (
  SELECT
    run_id, model_flops, start_ps,
    start_ps + GREATEST(duration_ps, 0) AS end_ps,
    MAX(start_ps + GREATEST(duration_ps, 0)) OVER (
      PARTITION BY run_id ORDER BY start_ps, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS covered_until_ps
  FROM models.ccl_events
  WHERE model_flops > 0
),

summed AS (
  SELECT
    run_id,
    SUM(model_flops) AS model_flops,
    SUM(GREATEST(end_ps - GREATEST(start_ps, COALESCE(covered_until_ps, start_ps)), 0)) AS active_ps
  FROM timed
  GROUP BY run_id
),

of_ranks AS (
  SELECT run_id, CAST(FLOOR(SUM(duration_ps) / COUNT(*) + 5e-1) AS BIGINT) AS step_ps
  FROM models.ccl_marks
  WHERE kind = 'profiler step' AND (places <= 2 OR (place > 1 AND place < places))
  GROUP BY run_id, host
),

on_gpus AS (
  SELECT run_id, SUM(step_ps) / (COUNT(*) * 1e12) AS step_s
  FROM of_ranks
  GROUP BY run_id
)

SELECT
  run_id,
  -- Utilization in percent.
  ROUND(s.model_flops * 1e2 / (CAST(s.active_ps AS DOUBLE) * (918 * c.chips)), 4) AS mfu_percent
FROM summed AS s
INNER JOIN models.ccl_card AS c USING (run_id)
WHERE s.active_ps > 0 AND c.chips > 0 AND c.hardware = 'tpu_v6e'
UNION ALL
SELECT
  run_id,
  ROUND(
    CASE WHEN c.stated_phase = 'inference' THEN 1 ELSE 3 END
    * (2 * CAST(c.parameters AS DOUBLE) + 4 * CAST(c.attention_parameters AS DOUBLE)) * c.tokens
    / (g.step_s * CASE WHEN c.hardware = 'nvidia_a100' THEN 312e12 ELSE 989e12 END * c.gpus) * 1e2,
    4
  ) AS mfu_percent
FROM on_gpus AS g
INNER JOIN models.ccl_card AS c USING (run_id)
WHERE g.step_s > 0 AND c.hardware IN ('nvidia_a100', 'nvidia_h100') AND c.attention_parameters IS NOT NULL;

CREATE VIEW metrics.ccl_mfu AS SELECT run_id, mfu_percent FROM metrics.ccl_mfu_v1;

CREATE VIEW metrics.ccl_total_communication_time_v1 AS WITH worded AS (
  SELECT
    run_id, device_duration_ps, duration_ps,
    (
      LOWER(name) LIKE '%all-reduce%' OR LOWER(name) LIKE '%allreduce%' OR LOWER(name) LIKE '%all-gather%'
      OR LOWER(name) LIKE '%allgather%' OR LOWER(name) LIKE '%reduce-scatter%' OR LOWER(name) LIKE '%reducescatter%'
      OR LOWER(name) LIKE '%all-to-all%' OR LOWER(name) LIKE '%alltoall%' OR LOWER(name) LIKE '%collective%'
      OR LOWER(name) LIKE '%nccl%'
    ) AS is_communication
  FROM models.ccl_events
),

kernels AS (
  SELECT
    run_id, is_nsys, host, event_id, start_ps, end_ps, duration_ps,
    REGEXP_MATCHES(
      lower_name,
      '^nccl|nccldevkernel|ncclkernel|allreduce|allgather|reducescatter|broadcast|cross[-_]?device|all_reduce'
    ) OR REGEXP_MATCHES(lower_name, 'all_gather|reduce_scatter|sendrecv') AS is_communication
  FROM models.ccl_kernels
),

steps AS (
  SELECT
    run_id, host,
    MIN(start_ps) FILTER (WHERE place = 2 AND places > 2) AS first_ps,
    MAX(start_ps + duration_ps) FILTER (WHERE place = places - 1 AND places > 2) AS last_ps,
    CASE WHEN MAX(places) > 2 THEN MAX(places) - 2 ELSE MAX(places) END AS steps
  FROM models.ccl_marks
  WHERE kind = 'profiler step'
  GROUP BY run_id, host
),

clipped AS (
  SELECT
    run_id, host, k.is_communication, k.event_id,
    CASE WHEN k.is_communication THEN GREATEST(k.start_ps, COALESCE(s.first_ps, k.start_ps)) END AS start_ps,
    CASE WHEN k.is_communication THEN LEAST(k.end_ps, COALESCE(s.last_ps, k.end_ps)) END AS end_ps,
    COALESCE(s.steps, 1) AS steps
  FROM kernels AS k
  LEFT JOIN steps AS s USING (run_id, host)
  WHERE NOT k.is_nsys
),

covered AS (
  SELECT
    run_id, host, is_communication, steps, start_ps, end_ps,
    MAX(CASE WHEN start_ps < end_ps THEN end_ps END) OVER (
      PARTITION BY run_id, host ORDER BY start_ps, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS covered_until_ps
  FROM clipped
),

of_ranks AS (
  SELECT
    run_id, host,
    CAST(
      FLOOR(
        COALESCE(SUM(GREATEST(end_ps - GREATEST(start_ps, COALESCE(covered_until_ps, start_ps)), 0)), 0) / MAX(steps)
        + 5e-1
      ) AS BIGINT
    ) AS step_ps,
    COUNT(*) FILTER (WHERE is_communication) AS events
  FROM covered
  GROUP BY run_id, host
),

summed AS (
  SELECT
    run_id,
    COUNT(*) FILTER (WHERE is_communication) AS events,
    SUM(device_duration_ps) FILTER (WHERE is_communication) AS device_ps,
    SUM(duration_ps) FILTER (WHERE is_communication) AS event_ps
  FROM worded
  GROUP BY run_id
)

SELECT
  run_id,
  -- Duration over all devices per iteration.
  COALESCE(s.device_ps, s.event_ps, 0)
  / (CASE WHEN c.iterations > 0 THEN c.iterations ELSE 1 END * 1e12) AS communication_s,
  s.events -- Events whose name has such a word.
FROM summed AS s
INNER JOIN models.ccl_card AS c USING (run_id)
UNION ALL
SELECT
  run_id,
  SUM(step_ps) / (COUNT(*) * 1e12) AS communication_s,
  CAST(SUM(events) AS BIGINT) AS events
FROM of_ranks
GROUP BY run_id
UNION ALL
SELECT
  run_id,
  COALESCE(SUM(duration_ps) FILTER (WHERE is_communication), 0) / 1e12 AS communication_s,
  COUNT(*) FILTER (WHERE is_communication) AS events
FROM kernels
WHERE is_nsys
GROUP BY run_id;

CREATE VIEW metrics.ccl_total_communication_time AS SELECT run_id, communication_s, events FROM metrics.ccl_total_communication_time_v1;

CREATE VIEW metrics.ccl_tpot_v1 AS WITH of_ranks AS (
  SELECT run_id, CAST(FLOOR(SUM(m.duration_ps) / COUNT(*) + 5e-1) AS BIGINT) AS step_ps, COUNT(*) AS steps
  FROM models.ccl_marks AS m
  INNER JOIN models.ccl_card AS c USING (run_id)
  WHERE
    c.phase = 'inference' AND (c.output_length IS NULL OR c.output_length > 1)
    AND m.place > 1 AND (m.places <= 2 OR m.place < m.places)
    AND m.kind = m.server_kind
  GROUP BY run_id, m.host
)

SELECT
  run_id,
  SUM(s.duration_ps) / (COUNT(*) * 1e12) AS tpot_s, -- Mean duration of these events.
  COUNT(*) AS steps -- Events covered.
FROM models.ccl_steps AS s
INNER JOIN models.ccl_card AS c USING (run_id)
WHERE
  c.phase = 'inference' AND (c.output_length IS NULL OR c.output_length > 1)
  AND s.place > 1 AND (s.places <= 2 OR s.place < s.places)
GROUP BY run_id
UNION ALL
SELECT run_id, SUM(step_ps) / (COUNT(*) * 1e12) AS tpot_s, CAST(SUM(steps) AS BIGINT) AS steps
FROM of_ranks
GROUP BY run_id;

CREATE VIEW metrics.ccl_tpot AS SELECT run_id, tpot_s, steps FROM metrics.ccl_tpot_v1;

CREATE VIEW metrics.ccl_ttft_v1 AS SELECT
  run_id,
  SUM(s.duration_ps) / (COUNT(*) * 1e12) AS ttft_s, -- Duration of the first event.
  COUNT(*) AS steps -- Events covered, always 1.
FROM models.ccl_steps AS s
INNER JOIN models.ccl_card AS c USING (run_id)
WHERE s.place = 1 AND c.phase = 'inference'
GROUP BY run_id
UNION ALL
SELECT
  run_id,
  SUM(m.duration_ps) / (COUNT(*) * 1e12) AS ttft_s,
  COUNT(*) AS steps
FROM models.ccl_marks AS m
INNER JOIN models.ccl_card AS c USING (run_id)
WHERE
  c.phase = 'inference' AND m.place = 1
  AND m.kind = m.server_kind
GROUP BY run_id;

CREATE VIEW metrics.ccl_ttft AS SELECT run_id, ttft_s, steps FROM metrics.ccl_ttft_v1;

CREATE VIEW metrics.kv_cache_traffic_v1 AS WITH worked AS (
  SELECT
    run_id, o.device_id, o.step,
    COUNT(*) AS kernels,
    SUM(c.token_bytes) AS token_bytes,
    SUM(o.self_ps) AS self_ps
  FROM models.leaf_ops AS o
  INNER JOIN models.attention_caches AS c USING (run_id, instruction_id)
  GROUP BY run_id, o.device_id, o.step
),

moved AS (
  SELECT
    run_id, w.device_id, w.kernels, w.token_bytes, w.self_ps,
    d.requests, w.token_bytes * d.context_tokens AS read_bytes,
    w.token_bytes * d.decode_tokens AS written_bytes
  FROM worked AS w
  INNER JOIN models.decode_contexts AS d USING (run_id, step)
  WHERE d.ranks = 1
)

SELECT
  run_id, device_id,
  SUM(read_bytes) / COUNT(*) AS read_bytes_per_step, -- Bytes that are read.
  -- lower if steps have several requests, of which only the shortest context is known.
  CASE WHEN MAX(requests) > 1 THEN 'lower' END AS bound,
  SUM(written_bytes) / COUNT(*) AS written_bytes_per_step, -- Bytes that are written.
  SUM(token_bytes) / COUNT(*) AS token_bytes, -- Bytes of a token in the caches of all layers of the device.
  SUM(kernels) / COUNT(*) AS kernels_per_step, -- Executions of the kernels, one for each layer.
  SUM(self_ps) / (COUNT(*) * 1e9) AS kernel_ms_per_step, -- Their self time.
  SUM(read_bytes) * 1e3 / NULLIF(SUM(self_ps), 0) AS read_gbps, -- Bytes that are read over it, decimal.
  COUNT(*) AS steps -- Decode steps that it covers.
FROM moved
GROUP BY run_id, device_id;

CREATE VIEW metrics.kv_cache_traffic AS SELECT run_id, device_id, read_bytes_per_step, bound, written_bytes_per_step, token_bytes, kernels_per_step, kernel_ms_per_step, read_gbps, steps FROM metrics.kv_cache_traffic_v1;

CREATE VIEW models.decode_times AS WITH served AS (
  SELECT run_id, COUNT(*) AS batches
  FROM main.step_batches
  GROUP BY run_id
)

SELECT
  run_id, t.step,
  -- Tokens that a sequence attends to.
  CASE
    WHEN s.run_id IS NULL THEN COALESCE(p.context_tokens, r.input_length + t.step)
    ELSE c.context_tokens // c.requests
  END AS context_tokens,
  t.step_time_ms -- Time of the step on the slowest device.
FROM metrics.step_time_v1 AS t
INNER JOIN main.runs AS r USING (run_id)
LEFT JOIN served AS s USING (run_id)
LEFT JOIN models.decode_contexts AS c ON t.run_id = c.run_id AND t.step = c.step
LEFT JOIN main.predictions AS p ON t.run_id = p.run_id AND t.phase = p.phase
WHERE
  t.phase = 'decode'
  AND t.step_time_ms IS NOT NULL
  AND CASE WHEN s.run_id IS NULL THEN r.input_length ELSE c.context_tokens END IS NOT NULL;

CREATE VIEW models.fitted_lines AS WITH points AS (
  SELECT
    run_id,
    'transfer' AS subject,
    kind, axis,
    CAST(NULL AS BIGINT) AS requests,
    is_async,
    bus_bytes AS size,
    transfer_ps AS time_ps,
    0 AS begun_stretches
  FROM models.collective_instances
  WHERE NOT is_partial AND bus_bytes > 0 AND transfer_ps IS NOT NULL
  UNION ALL
  SELECT
    run_id,
    'decode' AS subject,
    NULL AS kind,
    NULL AS axis,
    CAST(requests AS BIGINT) AS requests,
    FALSE AS is_async,
    -- twice the tokens since the middle of the stretch, whose sum over the stretch is 0
    requests * (2 * stretch_position + 1 - stretch_steps) AS size,
    longest_ps
    - CAST(SUM(longest_ps) OVER (PARTITION BY run_id, requests, stretch) AS BIGINT) // stretch_steps AS time_ps,
    CASE WHEN stretch_position = 0 THEN 1 ELSE 0 END AS begun_stretches
  FROM models.decode_contexts
  WHERE stretch_steps > 2
),

sized AS (
  SELECT
    run_id, subject, kind, axis, requests, size,
    COUNT(*) AS points,
    SUM(begun_stretches) AS begun_stretches,
    COUNT(*) FILTER (WHERE is_async) AS async_points,
    SUM(size) AS sum_size,
    SUM(time_ps) AS sum_ps,
    MIN(time_ps) AS least_ps,
    MAX(time_ps) AS most_ps
  FROM points
  GROUP BY run_id, subject, kind, axis, requests, size
),

ranges AS (
  SELECT
    run_id, subject, kind, axis, requests,
    CAST(SUM(points) AS BIGINT) AS points,
    CAST(SUM(points) - 1 - GREATEST(SUM(begun_stretches), 1) AS BIGINT) AS freedom,
    CAST(SUM(async_points) AS BIGINT) AS async_points,
    COUNT(*) AS sizes,
    COUNT(*) FILTER (WHERE points > 1) AS repeated_sizes,
    MIN(size) AS least_size,
    MAX(size) AS most_size,
    SUM(sum_size) AS sum_size,
    SUM(sum_ps) AS sum_ps,
    MAX(most_ps) - MIN(least_ps) AS range_ps,
    CASE WHEN SUM(points) < 1024 THEN 67108864 WHEN SUM(points) < 65536 THEN 8388608 ELSE 1048576 END AS finest
  FROM sized
  GROUP BY run_id, subject, kind, axis, requests
  HAVING SUM(points) > 1 + GREATEST(SUM(begun_stretches), 1)
),

units AS (
  SELECT *, (most_size - least_size) // finest + 1 AS unit_size, range_ps // finest + 1 AS unit_ps
  FROM ranges
),

differences AS (
  SELECT
    u.*,
    (p.size - u.sum_size // u.points) // u.unit_size AS x,
    (p.time_ps - u.sum_ps // u.points) // u.unit_ps AS y
  FROM points AS p
  INNER JOIN units AS u
    ON
      p.run_id = u.run_id
      AND p.subject = u.subject
      AND p.kind IS NOT DISTINCT FROM u.kind
      AND p.axis IS NOT DISTINCT FROM u.axis
      AND p.requests IS NOT DISTINCT FROM u.requests
),

summed AS (
  SELECT
    run_id, subject, kind, axis, requests, points, freedom, async_points, sizes, repeated_sizes, least_size, most_size,
    sum_size, sum_ps, unit_size, unit_ps,
    SUM(x) AS sum_x,
    SUM(y) AS sum_y,
    SUM(x * x) AS sum_xx,
    SUM(x * y) AS sum_xy,
    SUM(y * y) AS sum_yy
  FROM differences
  GROUP BY
    run_id, subject, kind, axis, requests, points, freedom, async_points, sizes, repeated_sizes, least_size, most_size,
    sum_size, sum_ps, unit_size, unit_ps
),

moments AS (
  SELECT
    *,
    CAST(sum_xx AS DOUBLE) - CAST(sum_x AS DOUBLE) * CAST(sum_x AS DOUBLE) / points AS xx,
    CAST(sum_xy AS DOUBLE) - CAST(sum_x AS DOUBLE) * CAST(sum_y AS DOUBLE) / points AS xy,
    CAST(sum_yy AS DOUBLE) - CAST(sum_y AS DOUBLE) * CAST(sum_y AS DOUBLE) / points AS yy
  FROM summed
),

lines AS (
  SELECT
    run_id, subject, kind, axis, requests, points, async_points, sizes, repeated_sizes, least_size, most_size,
    CAST(sum_size AS DOUBLE) / points AS mean_size,
    CAST(sum_ps AS DOUBLE) / points AS mean_ps,
    xx * CAST(unit_size AS DOUBLE) * CAST(unit_size AS DOUBLE) AS square_size,
    xy * CAST(unit_ps AS DOUBLE) / (xx * CAST(unit_size AS DOUBLE)) AS slope,
    xy * xy / (xx * NULLIF(yy, 0)) AS r2,
    -- sum of squared distances from the line over its degrees of freedom
    GREATEST(yy - xy * xy / xx, 0) * CAST(unit_ps AS DOUBLE) * CAST(unit_ps AS DOUBLE) / freedom AS variance,
    1.95996398e0
    + 2.37227123e0 / freedom
    + 2.82249862e0 / (freedom * freedom)
    + 2.55584968e0 / (freedom * freedom * freedom)
    + 1.58953405e0 / (freedom * freedom * freedom * freedom) AS t
  FROM moments
  WHERE xx > 0
)

SELECT
  run_id,
  subject, -- What the times are of: transfer or decode.
  kind, -- Kind of collective, of a transfer.
  axis, -- Mesh axes of its groups, of a transfer.
  requests, -- Requests of a decode step.
  points, -- Number of points.
  async_points, -- Points of asynchronous collectives.
  sizes, -- Distinct sizes.
  repeated_sizes, -- Sizes that have several points.
  least_size, -- Smallest size, in bytes, or half tokens since the middle of the stretch.
  most_size, -- Largest one.
  slope AS slope_ps, -- Time per byte or half token.
  t * SQRT(variance / square_size) AS slope_error_ps, -- Half of its 95 % interval.
  mean_ps - slope * mean_size AS intercept_ps, -- Time at size 0.
  t * SQRT(variance * (1e0 / points + mean_size * mean_size / square_size)) AS intercept_error_ps, -- Half of its interval.
  r2 -- Share of the variance that the line explains; NULL if all times are equal.
FROM lines;

CREATE VIEW preconditions.decode_batches AS SELECT run_id FROM models.decode_contexts;

CREATE VIEW preconditions.varied_contexts AS SELECT run_id FROM models.decode_contexts WHERE stretch_steps > 2 GROUP BY run_id, requests HAVING COUNT(*) >= 6;

CREATE VIEW metrics.host_gap_v1 AS WITH marks AS (
  SELECT run_id, start_ps AS at_ps, 1 AS pausing, NULL AS step_start_ps, NULL AS step_until_ps
  FROM models.device_pauses
  UNION ALL
  SELECT run_id, end_ps AS at_ps, -1 AS pausing, NULL AS step_start_ps, NULL AS step_until_ps
  FROM models.device_pauses
  UNION ALL
  SELECT run_id, start_ps AS at_ps, 0 AS pausing, start_ps AS step_start_ps, until_ps AS step_until_ps
  FROM models.run_steps
  UNION ALL
  SELECT run_id, until_ps AS at_ps, 0 AS pausing, NULL AS step_start_ps, NULL AS step_until_ps
  FROM models.run_steps
),

-- of several marks at one time, the last has a length and counts all of them
swept AS (
  SELECT
    run_id,
    at_ps AS start_ps,
    LEAD(at_ps) OVER (PARTITION BY run_id ORDER BY at_ps, pausing, step_start_ps) AS end_ps,
    SUM(pausing) OVER so_far AS pausing,
    MAX(step_start_ps) OVER so_far AS step_start_ps,
    MAX(step_until_ps) OVER so_far AS step_until_ps
  FROM marks
  WINDOW so_far AS (
    PARTITION BY run_id ORDER BY at_ps, pausing, step_start_ps ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  )
),

running AS (
  SELECT run_id, COUNT(DISTINCT device_id) AS devices
  FROM models.execution_ops
  GROUP BY run_id
),

counted AS (
  SELECT g.run_id, g.step_start_ps, SUM(g.end_ps - g.start_ps) AS gap_ps
  FROM swept AS g
  INNER JOIN running AS d ON g.run_id = d.run_id AND g.pausing = d.devices
  WHERE g.end_ps > g.start_ps AND g.start_ps < g.step_until_ps
  GROUP BY g.run_id, g.step_start_ps
)

SELECT
  run_id, t.phase,
  -- Share of the time without an op on any device.
  SUM(COALESCE(c.gap_ps, 0)) / SUM(t.until_ps - t.start_ps) AS gap_ratio,
  CASE WHEN COUNT(*) FILTER (WHERE t.is_last) > 0 THEN 'lower' END AS bound,
  SUM(COALESCE(c.gap_ps, 0)) / 1e9 AS gap_ms, -- Time without an op on any device, over all steps.
  SUM(t.until_ps - t.start_ps) / 1e9 AS time_ms, -- Time of the steps.
  CAST(1 AS BIGINT) AS threshold_us, -- Shorter times between two ops of a device are no pause.
  COUNT(*) AS steps -- Steps of the phase that count.
FROM models.run_steps AS t
INNER JOIN running USING (run_id)
LEFT JOIN counted AS c ON t.run_id = c.run_id AND t.start_ps = c.step_start_ps
LEFT JOIN models.predicted_runs AS g USING (run_id)
WHERE t.is_timed AND g.is_predicted IS NULL
GROUP BY run_id, t.phase
HAVING SUM(t.until_ps - t.start_ps) > 0;

CREATE VIEW metrics.host_gap AS SELECT run_id, phase, gap_ratio, bound, gap_ms, time_ms, threshold_us, steps FROM metrics.host_gap_v1;

CREATE VIEW models.device_gaps AS WITH steps AS (
  SELECT run_id, device_id, phase, step, MIN(first_start_ps) AS first_start_ps
  FROM models.execution_ops
  WHERE step IS NOT NULL
  GROUP BY run_id, device_id, phase, step
),

executions AS (
  SELECT run_id, device_id, execution, MIN(first_start_ps) AS first_start_ps
  FROM models.execution_ops
  GROUP BY run_id, device_id, execution
),

handing AS (
  SELECT run_id, event_id
  FROM models.communication_ops
  WHERE axis = 'pp'
  GROUP BY run_id, event_id
)

SELECT
  p.run_id, p.device_id, p.phase, p.step,
  p.event_id, -- The op that ends the gap.
  p.start_ps, -- Start of the gap, the latest end of the ops before it.
  p.end_ps, -- End of the gap.
  p.end_ps - p.start_ps AS gap_ps, -- Length of the gap, end_ps - start_ps.
  CASE
    WHEN p.end_ps = e.first_start_ps THEN 'launch'
    WHEN h.event_id IS NOT NULL THEN 'tick'
    WHEN p.op_class = 'communication' THEN 'collective'
    ELSE p.op_class
  -- What ends it - launch (the first op of an execution of a program), tick (a collective on axis pp, or the start or
  -- done of one, with which a pipeline's tick hands over), another collective, copy or compute.
  END AS next
FROM models.device_pauses AS p
INNER JOIN steps AS s
  ON
    p.run_id = s.run_id AND p.device_id = s.device_id AND p.step = s.step AND p.phase IS NOT DISTINCT FROM s.phase
    AND p.end_ps > s.first_start_ps
LEFT JOIN handing AS h ON p.run_id = h.run_id AND p.event_id = h.event_id
LEFT JOIN executions AS e ON p.run_id = e.run_id AND p.device_id = e.device_id AND p.execution = e.execution;

CREATE VIEW metrics.gemm_efficiency_v1 AS WITH sized AS (
  SELECT
    run_id, t.phase, t.device_id, t.op_class, i.shape, i.operand_dtype, t.product_type,
    COALESCE(t.model_flops, t.flops) AS flops,
    t.ops, t.self_ps
  FROM models.instruction_time AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
),

shares AS (
  SELECT
    run_id, phase,
    COALESCE(SUM(self_ps) FILTER (WHERE flops IS NULL), 0) / NULLIF(SUM(self_ps), 0) AS unsized_share
  FROM sized
  WHERE op_class = 'compute'
  GROUP BY run_id, phase
),

products AS (
  SELECT
    run_id, s.phase, s.shape, s.operand_dtype, s.flops,
    MIN(k.peak_flops_per_s) AS peak_flops_per_s,
    SUM(s.self_ps) AS self_ps,
    SUM(s.ops) AS executions
  FROM sized AS s
  INNER JOIN models.device_peaks AS k USING (run_id, device_id, product_type)
  WHERE s.flops > 0
  GROUP BY run_id, s.phase, s.shape, s.operand_dtype, s.flops
)

SELECT
  p.run_id, p.phase,
  p.shape, -- Shape of the result.
  p.operand_dtype, -- Element type that it multiplies.
  p.flops, -- Operations of one execution.
  CAST(p.flops AS DOUBLE) * p.executions * 1e12 / (p.self_ps * p.peak_flops_per_s) AS efficiency, -- Share of the peak.
  CAST(p.flops AS DOUBLE) * p.executions / p.self_ps AS tflops_per_s, -- Operations over self time, 10^12 per second.
  p.self_ps / 1e9 AS self_ms, -- Self time over all devices.
  p.self_ps / (p.executions * 1e6) AS mean_us, -- Mean self time of an execution.
  CAST(p.executions AS BIGINT) AS executions,
  p.peak_flops_per_s, -- Peak of a device for the type; the smallest where devices differ.
  -- Share of the phase's compute time in ops whose operations are not known.
  s.unsized_share
FROM products AS p
LEFT JOIN shares AS s ON p.run_id = s.run_id AND p.phase IS NOT DISTINCT FROM s.phase
WHERE p.self_ps > 0;

CREATE VIEW metrics.gemm_efficiency AS SELECT run_id, phase, shape, operand_dtype, flops, efficiency, tflops_per_s, self_ms, mean_us, executions, peak_flops_per_s, unsized_share FROM metrics.gemm_efficiency_v1;

CREATE VIEW metrics.layer_coverage_v1 AS WITH placed AS (
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
WHERE s.self_ps > 0;

CREATE VIEW metrics.layer_coverage AS SELECT run_id, phase, coverage, marked, in_loops, inferred, outside, self_ms FROM metrics.layer_coverage_v1;

CREATE VIEW metrics.layer_time_v1 AS WITH worked AS (
  SELECT
    run_id, phase, device_id, layer, part,
    SUM(self_ps) AS self_ps,
    COALESCE(SUM(self_ps) FILTER (WHERE op_class = 'compute'), 0) AS compute_ps,
    COALESCE(SUM(self_ps) FILTER (WHERE op_class = 'communication'), 0) AS communication_ps
  FROM models.instruction_time
  GROUP BY run_id, phase, device_id, layer, part
),

stepped AS (
  SELECT t.run_id, t.phase, t.layer, t.part, t.self_ps, t.compute_ps, t.communication_ps, COALESCE(s.steps, 1) AS steps
  FROM worked AS t
  LEFT JOIN models.phase_steps AS s
    ON t.run_id = s.run_id AND t.device_id = s.device_id AND t.phase IS NOT DISTINCT FROM s.phase
),

known AS (
  SELECT run_id
  FROM worked
  WHERE layer IS NOT NULL OR part IS NOT NULL
  GROUP BY run_id
)

SELECT
  run_id, p.phase, p.layer, p.part,
  SUM(p.self_ps) / (SUM(p.steps) * 1e6) AS self_us, -- Self time per device and step.
  SUM(p.compute_ps) / (SUM(p.steps) * 1e6) AS compute_us, -- Self time of compute ops.
  SUM(p.communication_ps) / (SUM(p.steps) * 1e6) AS communication_us, -- Self time of communication, including waiting.
  COUNT(*) AS devices -- Devices that ran any such op.
FROM stepped AS p
INNER JOIN known USING (run_id)
GROUP BY run_id, p.phase, p.layer, p.part;

CREATE VIEW metrics.layer_time AS SELECT run_id, phase, layer, part, self_us, compute_us, communication_us, devices FROM metrics.layer_time_v1;

CREATE VIEW metrics.mfu_v1 AS WITH products AS (
  SELECT run_id, phase, product_type, SUM(self_ps) AS self_ps
  FROM models.instruction_time
  WHERE product_type IS NOT NULL
  GROUP BY run_id, phase, product_type
),

-- the type that takes most of it
multiplied AS (
  SELECT run_id, phase, product_type
  FROM products
  QUALIFY ROW_NUMBER() OVER (PARTITION BY run_id, phase ORDER BY self_ps DESC, product_type) = 1
),

peaks AS (
  SELECT run_id, product_type, MIN(peak_flops_per_s) AS peak_flops_per_s, COUNT(*) AS devices
  FROM models.device_peaks
  GROUP BY run_id, product_type
),

-- what the ops of the steps computed
worked AS (
  SELECT
    run_id, phase,
    CAST(SUM(model_flops * timed_ops) AS BIGINT) AS hlo_model_flops,
    SUM(timed_self_ps) AS self_ps,
    SUM(timed_self_ps) FILTER (WHERE model_flops IS NULL) AS unsized_ps
  FROM models.instruction_time
  WHERE op_class = 'compute' AND timed_ops > 0
  GROUP BY run_id, phase
),

-- the steps whose time is known
phases AS (
  SELECT
    run_id, phase,
    COUNT(*) AS all_steps,
    COUNT(*) FILTER (WHERE is_timed) AS steps,
    CAST(SUM(step) FILTER (WHERE is_timed) AS BIGINT) AS sum_of_steps,
    SUM(longest_ps) FILTER (WHERE is_timed) AS time_ps,
    COUNT(*) FILTER (WHERE is_timed AND is_last) AS last_steps
  FROM models.run_steps
  WHERE phase IN ('prefill', 'decode', 'mixed')
  GROUP BY run_id, phase
),

-- what a server states of these steps
served AS (
  SELECT
    run_id, s.phase,
    COUNT(*) AS steps,
    CAST(SUM(t.prefill_tokens + t.decode_tokens) AS BIGINT) AS tokens,
    CAST(SUM(t.head_tokens) AS BIGINT) AS head_tokens,
    CAST(SUM(t.contexts) AS BIGINT) AS contexts
  FROM models.run_steps AS s
  INNER JOIN models.step_tokens AS t USING (run_id, step)
  WHERE s.is_timed AND t.head_tokens IS NOT NULL AND t.contexts IS NOT NULL
  GROUP BY run_id, s.phase
),

-- tokens of these steps and the contexts that they attend to
counted AS (
  SELECT
    run_id, p.phase, p.steps, p.time_ps, p.last_steps, h.devices, h.body_params, h.head_params,
    h.layers_width,
    COALESCE(m.product_type, h.product_type) AS product_type,
    COALESCE(v.steps = p.steps, FALSE) AS is_served,
    CASE WHEN v.steps = p.steps THEN v.head_tokens ELSE h.sequences * p.steps END AS head_tokens,
    CASE
      WHEN v.steps = p.steps THEN v.tokens
      WHEN p.phase = 'decode' THEN h.sequences * p.steps
      WHEN p.phase = 'prefill' AND p.all_steps = 1 THEN h.sequences * h.input_length
    END AS tokens,
    CASE
      WHEN v.steps = p.steps THEN v.contexts
      WHEN p.phase = 'decode' AND d.context_tokens IS NOT NULL THEN h.sequences * d.context_tokens * p.steps
      WHEN p.phase = 'decode' THEN h.sequences * (h.input_length * p.steps + p.sum_of_steps)
      WHEN p.phase = 'prefill' AND p.all_steps = 1 THEN h.sequences * ((h.input_length * (h.input_length + 1)) // 2)
    END AS contexts
  FROM phases AS p
  INNER JOIN models.model_shapes AS h USING (run_id)
  LEFT JOIN multiplied AS m USING (run_id, phase)
  LEFT JOIN served AS v USING (run_id, phase)
  LEFT JOIN main.predictions AS d USING (run_id, phase)
),

-- operations of these tokens, and the peak of their type
needed AS (
  SELECT
    run_id, phase, c.steps, c.time_ps, c.last_steps, c.is_served, c.devices, c.tokens,
    2 * (c.body_params * c.tokens + c.head_params * c.head_tokens) + 4 * c.layers_width * c.contexts AS model_flops,
    g.hlo_model_flops,
    COALESCE(g.unsized_ps, 0) / NULLIF(g.self_ps, 0) AS unsized_share,
    product_type, k.peak_flops_per_s,
    k.devices AS devices_with_peak
  FROM counted AS c
  INNER JOIN peaks AS k USING (run_id, product_type)
  LEFT JOIN worked AS g USING (run_id, phase)
  WHERE c.time_ps > 0
)

SELECT
  run_id,
  phase, -- prefill, decode, or mixed.
  -- Utilization; NULL if the model's shape or the lengths are not known.
  model_flops * 1e12 / (CAST(time_ps AS DOUBLE) * devices * peak_flops_per_s) AS mfu,
  -- upper if the time is that of a last step, without the wait after it; else lower if a server states the contexts, of
  -- which only the shortest is known.
  CASE WHEN last_steps > 0 THEN 'upper' WHEN is_served AND model_flops IS NOT NULL THEN 'lower' END AS bound,
  -- Utilization by the model_flops of leaf ops that neither communicate nor copy, as the profiler states them or as
  -- given at ingest, over the time of the same steps. Ops between two steps count for the one before. NULL if none is
  -- known.
  hlo_model_flops * 1e12 / (CAST(time_ps AS DOUBLE) * devices_with_peak * peak_flops_per_s) AS hlo_mfu,
  model_flops, -- Operations that the model needs; NULL if unknown.
  hlo_model_flops, -- Operations by the model_flops of the ops in these steps, of the devices in the capture.
  -- Share of the ops' self time for which operations are not known, so that hlo_mfu lacks them; NULL without ops.
  unsized_share,
  time_ps / 1e9 AS time_ms, -- Time of the steps.
  tokens, -- Tokens of the steps; NULL if unknown.
  steps, -- Steps of the phase that count.
  devices, -- Devices of the run, including missing ones.
  product_type AS peak_type, -- Type of matrix product whose peak counts: bf16, int8 or fp8.
  peak_flops_per_s -- Peak of a device; the smallest if devices differ.
FROM needed
WHERE model_flops IS NOT NULL OR hlo_model_flops IS NOT NULL;

CREATE VIEW metrics.mfu AS SELECT run_id, phase, mfu, bound, hlo_mfu, model_flops, hlo_model_flops, unsized_share, time_ms, tokens, steps, devices, peak_type, peak_flops_per_s FROM metrics.mfu_v1;

CREATE VIEW metrics.op_time_share_v1 AS WITH categories AS (
  SELECT run_id, phase, category, SUM(self_ps) AS self_ps, SUM(ops) AS ops
  FROM models.instruction_time
  GROUP BY run_id, phase, category
),

compared AS (
  SELECT run_id, phase, category, self_ps, ops, SUM(self_ps) OVER (PARTITION BY run_id, phase) AS phase_ps
  FROM categories
)

SELECT
  run_id, phase, category,
  self_ps / phase_ps AS share, -- Share of the self time.
  self_ps / 1e9 AS self_ms, -- Self time over all devices.
  CAST(ops AS BIGINT) AS ops -- Number of ops.
FROM compared
WHERE phase_ps > 0;

CREATE VIEW metrics.op_time_share AS SELECT run_id, phase, category, share, self_ms, ops FROM metrics.op_time_share_v1;

CREATE VIEW metrics.top_kernels_v1 AS WITH executed AS (
  SELECT
    run_id, phase, category, instruction_id,
    MIN(layer) AS first_layer,
    MAX(layer) AS last_layer,
    SUM(self_ps) AS self_ps,
    SUM(ops) AS ops
  FROM models.instruction_time
  GROUP BY run_id, phase, category, instruction_id
),

named AS (
  SELECT
    run_id, e.phase, e.category, instruction_id, i.op_class, i.op_name, i.source, e.first_layer, e.last_layer,
    e.self_ps, e.ops,
    REGEXP_EXTRACT(i.name, '^(.*?)([.][0-9]+)*$', 1) AS kernel
  FROM executed AS e
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
),

-- what is said of a kernel is that of its instruction that takes most time
kernels AS (
  SELECT
    run_id, phase, kernel, category, op_class, op_name, source,
    MIN(first_layer) OVER (PARTITION BY run_id, phase, kernel, category) AS first_layer,
    MAX(last_layer) OVER (PARTITION BY run_id, phase, kernel, category) AS last_layer,
    COUNT(*) OVER (PARTITION BY run_id, phase, kernel, category) AS instructions,
    SUM(self_ps) OVER (PARTITION BY run_id, phase, kernel, category) AS self_ps,
    SUM(ops) OVER (PARTITION BY run_id, phase, kernel, category) AS ops,
    ROW_NUMBER() OVER (PARTITION BY run_id, phase, kernel, category ORDER BY self_ps DESC, instruction_id) AS position
  FROM named
),

compared AS (
  SELECT
    * EXCLUDE (position),
    SUM(self_ps) OVER (PARTITION BY run_id, phase) AS phase_ps,
    ROW_NUMBER() OVER (PARTITION BY run_id, phase ORDER BY self_ps DESC, kernel, category) AS place
  FROM kernels
  WHERE position = 1
)

SELECT
  run_id, phase,
  kernel, -- Name of the ops without the numbers at its end.
  category,
  self_ps / phase_ps AS share, -- Share of the phase's self time.
  place, -- Place in the phase, 1 for the kernel that takes most time.
  self_ps / 1e9 AS self_ms, -- Self time over all devices.
  self_ps / (ops * 1e6) AS mean_us, -- Mean self time of an op.
  CAST(ops AS BIGINT) AS ops, -- Number of ops.
  instructions, -- Number of instructions.
  op_class, -- What the device does in them - communication, copy or compute.
  first_layer, -- First transformer layer that it works on; NULL where not known.
  last_layer, -- Last one.
  op_name, -- Name path of the instruction that takes most of the time; NULL where not known.
  source -- Source line of that instruction; NULL where not known.
FROM compared
WHERE phase_ps > 0;

CREATE VIEW metrics.top_kernels AS SELECT run_id, phase, kernel, category, share, place, self_ms, mean_us, ops, instructions, op_class, first_layer, last_layer, op_name, source FROM metrics.top_kernels_v1;

CREATE VIEW models.instruction_bounds AS WITH timed AS (
  SELECT
    run_id, o.instruction_id,
    SUM(o.self_ps) AS self_ps,
    CAST(SUM(o.ops) AS BIGINT) AS executions,
    SUM(o.flops * o.ops) AS flops,
    SUM(o.ops) FILTER (WHERE o.flops IS NOT NULL) AS counted_ops,
    SUM(o.self_ps) FILTER (WHERE o.flops IS NOT NULL) AS counted_ps,
    SUM(o.bytes_accessed * o.ops) AS bytes_accessed,
    SUM(o.ops) FILTER (WHERE o.bytes_accessed IS NOT NULL) AS sized_ops,
    SUM(o.hbm_bytes_accessed * o.ops) AS hbm_bytes_accessed,
    COUNT(*) FILTER (WHERE o.flops IS NULL OR o.bytes_accessed IS NULL) AS unsized,
    COALESCE(SUM(o.self_ps) FILTER (WHERE o.flops IS NULL OR o.bytes_accessed IS NULL), 0) AS unsized_ps,
    MIN(k.peak_flops_per_s) AS peak_flops_per_s,
    MIN(d.peak_hbm_gbps) AS peak_hbm_gbps
  FROM models.instruction_time AS o
  LEFT JOIN main.devices AS d USING (run_id, device_id)
  LEFT JOIN models.device_peaks AS k
    ON
      o.run_id = k.run_id
      AND o.device_id = k.device_id
      AND COALESCE(o.product_type, 'bf16') = k.product_type
  GROUP BY run_id, o.instruction_id
),

shares AS (
  SELECT run_id, SUM(t.unsized_ps) / NULLIF(SUM(t.self_ps), 0) AS unsized_share
  FROM timed AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  WHERE i.op_class = 'compute'
  GROUP BY run_id
),

-- what an instruction sends, over links of one class
sent AS (
  SELECT
    run_id, c.instruction_id,
    CASE WHEN COUNT(c.wire_bytes) = COUNT(*) THEN CAST(SUM(c.wire_bytes) AS BIGINT) END AS wire_bytes,
    MIN(COALESCE(c.link, d.link, '')) AS first_link,
    MAX(COALESCE(c.link, d.link, '')) AS last_link,
    MIN(
      CASE
        WHEN c.link = 'die' THEN d.peak_die_gbps
        WHEN c.link IS DISTINCT FROM 'dcn' THEN COALESCE(d.peak_ici_gbps, d.peak_link_gbps)
      END
    ) AS peak_gbps
  FROM main.collectives AS c
  LEFT JOIN main.devices AS d USING (run_id, device_id)
  GROUP BY run_id, c.instruction_id
),

needed AS (
  SELECT
    run_id, instruction_id, i.name, i.category, t.flops, t.counted_ops, t.counted_ps, t.bytes_accessed, t.sized_ops,
    s.first_link,
    (i.collective IS NOT NULL AND s.wire_bytes IS NULL) OR (i.op_class = 'compute' AND t.unsized > 0) AS is_unsized,
    h.unsized_share, s.wire_bytes, t.self_ps, t.executions,
    CAST(COALESCE(t.flops, 0) AS DOUBLE) * (1e12 / NULLIF(t.peak_flops_per_s, 0)) AS compute_ps,
    CAST(COALESCE(t.hbm_bytes_accessed, 0) AS DOUBLE) * (1e3 / NULLIF(t.peak_hbm_gbps, 0)) AS memory_ps,
    CASE
      WHEN s.first_link = s.last_link THEN s.wire_bytes * (1e3 / NULLIF(s.peak_gbps, 0))
      WHEN s.wire_bytes IS NULL THEN 0
    END AS link_ps
  FROM timed AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  LEFT JOIN sent AS s USING (run_id, instruction_id)
  LEFT JOIN shares AS h USING (run_id)
  WHERE t.self_ps > 0 AND i.async_role IS NULL AND (t.flops > 0 OR t.bytes_accessed > 0)
)

SELECT
  run_id, instruction_id,
  name, -- Its name.
  category,
  -- Operations per second of a device, in the executions whose operations are known; NULL without any.
  CAST(flops AS DOUBLE) * 1e12 / NULLIF(counted_ps, 0) AS flops_per_s,
  CAST((2 * flops + counted_ops) // (2 * counted_ops) AS BIGINT) AS flops, -- Operations of an execution; their mean.
  -- Memory traffic of an execution; their mean.
  CAST((2 * bytes_accessed + sized_ops) // (2 * sized_ops) AS BIGINT) AS bytes_accessed,
  wire_bytes, -- Bytes that all executions send; NULL if unknown or not a collective.
  -- Operations per byte of memory traffic.
  CAST(flops AS DOUBLE) * sized_ops / (NULLIF(CAST(bytes_accessed AS DOUBLE), 0) * counted_ops) AS intensity,
  CAST(self_ps AS BIGINT) AS self_ps, -- Self time of all executions.
  executions,
  -- Share of the self time of the run's compute ops whose flops or bytes are unknown; NULL without such ops.
  unsized_share,
  compute_ps, -- Time at the peak of the matrix units; NULL where the peak is not known.
  memory_ps, -- Time at the peak of the memory; NULL where the peak is not known.
  link_ps, -- Time at the peak of the links; 0 for what sends nothing, NULL where the peak is not known.
  CASE
    WHEN compute_ps IS NULL OR memory_ps IS NULL THEN NULL
    WHEN is_unsized OR (wire_bytes > 0 AND link_ps IS NULL) THEN NULL
    WHEN wire_bytes > 0 AND link_ps >= memory_ps AND link_ps >= compute_ps THEN NULLIF(first_link, '')
    WHEN memory_ps >= compute_ps THEN 'memory'
    ELSE 'compute'
  END AS bound, -- compute, memory, or the class of the links; NULL if a peak, a cost, or what is sent is unknown.
  -- Time at the peak of the bound; NULL where a peak, a cost or what is sent is not known.
  CASE
    WHEN is_unsized OR compute_ps IS NULL OR memory_ps IS NULL OR (wire_bytes > 0 AND link_ps IS NULL) THEN NULL
    ELSE GREATEST(compute_ps, memory_ps, COALESCE(link_ps, memory_ps))
  END AS bound_ps
FROM needed;

CREATE VIEW models.signed_times AS WITH shortest AS (
  SELECT run_id, instruction_id, instance, MIN(link) AS link, MIN(end_ps - start_ps) AS shortest_ps
  FROM main.collectives
  WHERE NOT is_async AND instance IS NOT NULL AND end_ps IS NOT NULL
  GROUP BY run_id, instruction_id, instance
),

collective AS (
  SELECT run_id, instruction_id, MIN(link) AS link, SUM(shortest_ps) AS shortest_ps, COUNT(*) AS executions
  FROM shortest
  GROUP BY run_id, instruction_id
),

executed AS (
  SELECT run_id, phase, instruction_id, SUM(self_ps) AS self_ps, SUM(ops) AS ops
  FROM models.instruction_time
  GROUP BY run_id, phase, instruction_id
)

SELECT
  run_id, e.phase, instruction_id,
  CAST(i.program_id AS VARCHAR) AS program_id, -- The compiled program.
  i.name, -- Name of the instruction.
  i.signature, -- Opcode, types, shapes and memory spaces.
  -- The kind of collective, product, kernel, copy, or vector for all other ops.
  CASE
    WHEN i.op_class = 'communication' THEN i.collective
    WHEN i.op_class = 'copy' THEN 'copy'
    WHEN i.opcode = 'custom-call' THEN 'kernel'
    WHEN i.operand_dtype IS NOT NULL OR i.category LIKE 'convolution%' THEN 'product'
    ELSE 'vector'
  END AS op_kind,
  -- Of a collective: small for less than 1 MiB, die within a chip. Of a kernel its name without numbers. Of a vector op:
  -- VMEM if all of it is in the core's own memory. NULL for all others.
  CASE
    WHEN i.op_class = 'communication' AND i.message_bytes < 1048576 AND c.link = 'die' THEN 'small die'
    WHEN i.op_class = 'communication' AND i.message_bytes < 1048576 THEN 'small'
    WHEN i.op_class = 'communication' AND c.link = 'die' THEN 'die'
    WHEN i.op_class IN ('communication', 'copy') THEN NULL
    WHEN i.opcode = 'custom-call' THEN REGEXP_EXTRACT(i.name, '^(.*?)([.][0-9]+)*$', 1)
    WHEN i.operand_dtype IS NOT NULL OR i.category LIKE 'convolution%' THEN NULL
    WHEN i.signature NOT LIKE '%hbm:%' THEN 'VMEM'
  END AS variant,
  CAST(e.ops AS BIGINT) AS ops, -- Executions, over all devices.
  CAST(COALESCE(c.shortest_ps, e.self_ps) AS BIGINT) AS time_ps, -- Their time.
  CAST(COALESCE(c.executions, e.ops) AS BIGINT) AS timed_ops, -- Executions that have this time, a collective's ranks once.
  CAST(e.self_ps AS BIGINT) AS self_ps -- Self time of all executions, with waiting.
FROM executed AS e
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
LEFT JOIN collective AS c USING (run_id, instruction_id)
WHERE i.async_role IS NULL;

CREATE VIEW metrics.token_cost_v1 AS WITH prices AS (
  SELECT
    run_id,
    CASE
      WHEN COUNT(chip_price_usd_per_h) = COUNT(*) AND MIN(chip_price_usd_per_h) = MAX(chip_price_usd_per_h)
        THEN MIN(chip_price_usd_per_h)
    END AS usd_per_h,
    MIN(chip_price_source) AS source
  FROM main.devices
  GROUP BY run_id
)

SELECT
  run_id,
  t.phase, -- prefill, decode, or mixed.
  -- Hours of a chip for a million tokens.
  h.chips * t.time_ps / (t.tokens * 3.6e9) AS chip_hours_per_million_tokens,
  h.chips * t.time_ps * p.usd_per_h / (t.tokens * 3.6e9) AS usd_per_million_tokens, -- Their price; NULL if unknown.
  p.usd_per_h AS chip_price_usd_per_h, -- Price of a chip for an hour; NULL if unknown.
  CASE WHEN p.usd_per_h IS NOT NULL THEN p.source END AS price_source, -- Where it comes from, with its date.
  h.chips, -- Chips of the run, with those outside the capture.
  t.tokens, -- Tokens of the steps that count.
  t.time_ps / 1e9 AS time_ms -- Time of these steps.
FROM models.phase_tokens AS t
INNER JOIN models.run_chips AS h USING (run_id)
INNER JOIN main.runs AS r USING (run_id)
LEFT JOIN prices AS p USING (run_id)
WHERE r.backend <> 'cpu';

CREATE VIEW metrics.token_cost AS SELECT run_id, phase, chip_hours_per_million_tokens, usd_per_million_tokens, chip_price_usd_per_h, price_source, chips, tokens, time_ms FROM metrics.token_cost_v1;

CREATE VIEW preconditions.timed_tokens AS SELECT run_id FROM models.phase_tokens;

CREATE VIEW metrics.throughput_v1 AS WITH clocks AS (
  SELECT
    t.run_id,
    CASE WHEN COUNT(l.run_id) > 0 THEN MIN(t.clock) ELSE MAX(t.clock) END AS clock
  FROM models.request_times AS t
  LEFT JOIN models.launched_runs AS l ON t.run_id = l.run_id
  WHERE t.prefill_start_ps IS NOT NULL AND t.decode_end_ps IS NOT NULL
  GROUP BY t.run_id
),

timed AS (
  SELECT
    run_id, clock, h.chips,
    CASE WHEN s.run_id IS NULL THEN 'lengths' ELSE 'batches' END AS token_source,
    COALESCE(s.decode_tokens, CAST(r.batch_size AS BIGINT) * t.decode_steps) AS decode_tokens,
    COALESCE(s.first_tokens, CAST(r.batch_size AS BIGINT)) AS first_tokens,
    COALESCE(s.prefill_tokens, CAST(r.batch_size AS BIGINT) * r.input_length) AS prefill_tokens,
    t.decode_end_ps - t.prefill_start_ps AS total_ps,
    CASE WHEN t.prefill_steps = 1 AND t.mixed_steps = 0 THEN t.prefill_end_ps - t.prefill_start_ps END AS prefill_ps,
    t.decode_end_ps - t.decode_start_ps AS decode_ps
  FROM models.request_times AS t
  INNER JOIN clocks USING (run_id, clock)
  INNER JOIN main.runs AS r USING (run_id)
  LEFT JOIN models.run_chips AS h USING (run_id)
  LEFT JOIN models.served_output AS s USING (run_id)
  WHERE s.run_id IS NOT NULL OR (t.prefill_steps = 1 AND t.mixed_steps = 0 AND r.batch_size IS NOT NULL)
)

SELECT
  run_id,
  (decode_tokens + first_tokens) / total_ps * 1e12 AS output_tokens_per_s, -- Output tokens of all sequences per second.
  -- Output tokens per second and chip of the run, including chips outside the capture.
  (decode_tokens + first_tokens) / (total_ps * NULLIF(chips, 0)) * 1e12 AS output_tokens_per_s_per_chip,
  -- Prompt tokens per second of prefill; NULL if their number is unknown, or if there are several prefills.
  prefill_tokens / NULLIF(prefill_ps, 0) * 1e12 AS prefill_tokens_per_s,
  -- Tokens of the steps that decode, per second from the first to the last of them.
  decode_tokens / NULLIF(decode_ps, 0) * 1e12 AS decode_tokens_per_s,
  decode_tokens + first_tokens AS output_tokens, -- Output tokens of all sequences.
  token_source, -- batches (what the server scheduled) or lengths (batch size and decode steps).
  chips, -- Chips of the run; NULL if its devices are unknown.
  clock
FROM timed
WHERE total_ps > 0;

CREATE VIEW metrics.throughput AS SELECT run_id, output_tokens_per_s, output_tokens_per_s_per_chip, prefill_tokens_per_s, decode_tokens_per_s, output_tokens, token_source, chips, clock FROM metrics.throughput_v1;

CREATE VIEW preconditions.told_requests AS WITH requested AS (SELECT run_id, clock, phase, step, start_ps, MIN(CASE WHEN phase = 'prefill' THEN start_ps END) OVER (PARTITION BY run_id, clock) AS request_ps FROM models.steps) SELECT run_id FROM requested WHERE phase IN ('prefill', 'mixed') AND start_ps >= request_ps GROUP BY run_id, clock HAVING COUNT(DISTINCT step) = 1 UNION ALL SELECT run_id FROM models.served_output;

CREATE VIEW preconditions.told_sequences AS SELECT run_id FROM main.runs WHERE batch_size IS NOT NULL UNION ALL SELECT run_id FROM models.served_output;

CREATE VIEW metrics.comm_to_compute_v1 AS WITH united AS (
  SELECT run_id, phase, device_id, SUM(new_ps) AS window_ps
  FROM models.communication_windows
  GROUP BY run_id, phase, device_id
),

communicating AS (
  SELECT run_id
  FROM united
  GROUP BY run_id
),

compared AS (
  SELECT run_id, d.phase, d.compute_ps, COALESCE(w.window_ps, 0) AS window_ps
  FROM models.device_phases AS d
  INNER JOIN communicating USING (run_id)
  LEFT JOIN united AS w ON d.run_id = w.run_id AND d.device_id = w.device_id AND d.phase IS NOT DISTINCT FROM w.phase
)

SELECT
  run_id, phase,
  SUM(window_ps) / SUM(compute_ps) AS comm_to_compute, -- Communication time over compute time.
  MIN(window_ps / NULLIF(compute_ps, 0)) AS min_ratio, -- The lowest of a device that computes.
  MAX(window_ps / NULLIF(compute_ps, 0)) AS max_ratio, -- The highest of a device that computes.
  SUM(window_ps) / 1e9 AS communication_ms, -- Communication time of all devices.
  SUM(compute_ps) / 1e9 AS compute_ms, -- Compute time of all devices.
  COUNT(*) AS devices -- Devices that ran the phase.
FROM compared
GROUP BY run_id, phase
HAVING SUM(compute_ps) > 0;

CREATE VIEW metrics.comm_to_compute AS SELECT run_id, phase, comm_to_compute, min_ratio, max_ratio, communication_ms, compute_ms, devices FROM metrics.comm_to_compute_v1;

CREATE VIEW metrics.hbm_bandwidth_v1 AS WITH sized AS (
  SELECT
    run_id, e.device_id, e.phase, e.ops, e.self_ps,
    COALESCE(i.async_role, 'start') = 'start' AS is_counted,
    e.bytes_accessed, e.hbm_bytes_accessed,
    e.on_chip_bytes_accessed AS on_chip_bytes,
    e.on_chip_bytes_accessed IS NOT NULL AS is_split
  FROM models.instruction_time AS e
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
),

moved AS (
  SELECT
    run_id, device_id, phase,
    CAST(SUM(bytes_accessed * ops) FILTER (WHERE is_counted) AS BIGINT) AS all_bytes,
    CAST(SUM(hbm_bytes_accessed * ops) FILTER (WHERE is_counted) AS BIGINT) AS bytes,
    CAST(SUM(on_chip_bytes * ops) FILTER (WHERE is_counted) AS BIGINT) AS on_chip_bytes,
    CAST(
      SUM(GREATEST(bytes_accessed - hbm_bytes_accessed - on_chip_bytes, 0) * ops) FILTER (WHERE is_counted) AS BIGINT
    ) AS other_bytes,
    CAST(SUM(hbm_bytes_accessed * ops) FILTER (WHERE is_split AND NOT is_counted) AS BIGINT) AS copied_bytes,
    CAST(COALESCE(SUM(bytes_accessed * ops) FILTER (WHERE is_counted AND NOT is_split), 0) AS BIGINT) AS unsplit_bytes,
    SUM(self_ps) AS self_ps,
    SUM(self_ps) FILTER (WHERE is_counted AND bytes_accessed IS NULL) AS unsized_ps,
    SUM(ops) FILTER (WHERE is_counted AND bytes_accessed IS NULL) AS unsized_ops
  FROM sized
  GROUP BY run_id, device_id, phase
)

SELECT
  d.run_id, d.phase, d.device_id,
  m.bytes * 1000 / d.busy_ps AS hbm_gbps, -- Bytes of HBM over busy time.
  -- Share of the device's peak; NULL if the peak is unknown.
  m.bytes * 1000 / d.busy_ps / NULLIF(v.peak_hbm_gbps, 0) AS utilization,
  m.bytes, -- Bytes of HBM in the phase.
  m.on_chip_bytes * 1000 / d.busy_ps AS on_chip_gbps, -- Bytes of memories on the chip, over busy time; NULL if not split.
  -- Bytes of other memories, such as the host's, over busy time; NULL if not split.
  m.other_bytes * 1000 / d.busy_ps AS other_gbps,
  -- Bytes that asynchronous ops write to HBM at their done, over busy time; NULL if not split.
  m.copied_bytes * 1000 / d.busy_ps AS copied_gbps,
  m.unsplit_bytes, -- The part of bytes that is not known to be HBM's.
  d.busy_ps / 1e9 AS busy_ms, -- Union of the leaf ops.
  CAST(COALESCE(m.unsized_ops, 0) AS BIGINT) AS unsized_ops, -- Ops whose bytes are unknown; they are not counted here.
  COALESCE(m.unsized_ps, 0) / NULLIF(m.self_ps, 0) AS unsized_share -- Share of these ops in the self time of all.
FROM models.device_phases AS d
INNER JOIN moved AS m ON d.run_id = m.run_id AND d.device_id = m.device_id AND d.phase IS NOT DISTINCT FROM m.phase
LEFT JOIN main.devices AS v ON d.run_id = v.run_id AND d.device_id = v.device_id
WHERE m.all_bytes > 0 AND d.busy_ps > 0;

CREATE VIEW metrics.hbm_bandwidth AS SELECT run_id, phase, device_id, hbm_gbps, utilization, bytes, on_chip_gbps, other_gbps, copied_gbps, unsplit_bytes, busy_ms, unsized_ops, unsized_share FROM metrics.hbm_bandwidth_v1;

CREATE VIEW metrics.load_imbalance_v1 AS WITH experts AS (
  SELECT run_id, t.phase, t.device_id, SUM(t.self_ps) AS moe_ps
  FROM models.instruction_time AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  WHERE i.part = 'moe' AND t.op_class = 'compute'
  GROUP BY run_id, t.phase, t.device_id
),

ranks AS (
  SELECT run_id, device_id
  FROM models.device_busy
  GROUP BY run_id, device_id
  HAVING SUM(compute_ps) > 0
),

loads AS (
  SELECT run_id, d.phase, d.busy_ps, d.compute_ps, COALESCE(e.moe_ps, 0) AS moe_ps
  FROM models.device_phases AS d
  INNER JOIN ranks USING (run_id, device_id)
  LEFT JOIN experts AS e ON d.run_id = e.run_id AND d.device_id = e.device_id AND d.phase IS NOT DISTINCT FROM e.phase
  LEFT JOIN models.predicted_runs AS g USING (run_id)
  WHERE g.is_predicted IS NULL
)

SELECT
  run_id, phase,
  MAX(busy_ps) * COUNT(*) / SUM(busy_ps) AS busy_imbalance, -- Largest busy time over the mean.
  -- Largest compute time over the mean; NULL without compute.
  MAX(compute_ps) * COUNT(*) / NULLIF(SUM(compute_ps), 0) AS compute_imbalance,
  -- The same for self time of the experts without communication; NULL without experts.
  MAX(moe_ps) * COUNT(*) / NULLIF(SUM(moe_ps), 0) AS moe_imbalance,
  COUNT(*) AS devices -- Devices that ran the phase and compute.
FROM loads
GROUP BY run_id, phase
HAVING COUNT(*) > 1 AND SUM(busy_ps) > 0;

CREATE VIEW metrics.load_imbalance AS SELECT run_id, phase, busy_imbalance, compute_imbalance, moe_imbalance, devices FROM metrics.load_imbalance_v1;

CREATE VIEW metrics.moe_fraction_v1 AS WITH exchanges AS (
  SELECT run_id, event_id
  FROM models.communication_ops
  WHERE axis = 'ep'
  GROUP BY run_id, event_id
),

exchanged AS (
  SELECT run_id, o.device_id, o.phase, o.instruction_id, SUM(o.self_ps) AS self_ps
  FROM main.ops AS o
  INNER JOIN exchanges USING (run_id, event_id)
  WHERE o.is_leaf AND o.device_id IS NOT NULL
  GROUP BY run_id, o.device_id, o.phase, o.instruction_id
),

experts AS (
  SELECT run_id, t.device_id, t.phase, t.op_class, t.self_ps
  FROM models.instruction_time AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  WHERE i.part = 'moe'
  UNION ALL
  SELECT run_id, x.device_id, x.phase, a.op_class, x.self_ps
  FROM exchanged AS x
  INNER JOIN main.instructions AS a USING (run_id, instruction_id)
  WHERE COALESCE(a.part, '') <> 'moe'
),

summed AS (
  SELECT
    run_id, device_id, phase,
    SUM(self_ps) AS moe_ps,
    COALESCE(SUM(self_ps) FILTER (WHERE op_class = 'communication'), 0) AS communication_ps
  FROM experts
  GROUP BY run_id, device_id, phase
),

known AS (
  SELECT run_id
  FROM main.instructions
  WHERE part = 'moe'
  GROUP BY run_id
)

SELECT
  run_id, d.phase,
  SUM(COALESCE(m.moe_ps, 0)) / SUM(d.busy_ps) AS fraction, -- Share of the busy time.
  -- Share of ops that do not communicate.
  SUM(COALESCE(m.moe_ps - m.communication_ps, 0)) / SUM(d.busy_ps) AS compute_fraction,
  -- Share of dispatch and combine, including waiting.
  SUM(COALESCE(m.communication_ps, 0)) / SUM(d.busy_ps) AS communication_fraction,
  SUM(COALESCE(m.moe_ps, 0)) / 1e9 AS moe_ms, -- Self time over all devices.
  COUNT(*) AS devices -- Devices that ran the phase.
FROM models.device_phases AS d
INNER JOIN known USING (run_id)
LEFT JOIN summed AS m ON d.run_id = m.run_id AND d.device_id = m.device_id AND d.phase IS NOT DISTINCT FROM m.phase
GROUP BY run_id, d.phase
HAVING SUM(d.busy_ps) > 0;

CREATE VIEW metrics.moe_fraction AS SELECT run_id, phase, fraction, compute_fraction, communication_fraction, moe_ms, devices FROM metrics.moe_fraction_v1;

CREATE VIEW preconditions.computed_phase AS SELECT run_id FROM models.device_phases WHERE compute_ps > 0;

CREATE VIEW preconditions.parallel_compute AS WITH computing AS (
  SELECT run_id, device_id FROM models.device_busy GROUP BY run_id, device_id HAVING SUM(compute_ps) > 0
) SELECT run_id FROM models.device_phases INNER JOIN computing USING (run_id, device_id) GROUP BY run_id, phase HAVING COUNT(*) > 1 AND SUM(busy_ps) > 0;

CREATE VIEW metrics.prefill_throughput_v1 AS SELECT
  run_id,
  c.tokens * 1e12 / c.time_ps AS prompt_tokens_per_s, -- Prompt tokens per second.
  -- The same per chip of the run, chips outside the capture included; NULL where their number is not known.
  c.tokens * 1e12 / (c.time_ps * NULLIF(h.chips, 0)) AS prompt_tokens_per_s_per_chip,
  c.tokens, -- Prompt tokens of these steps.
  c.time_ps / 1e9 AS time_ms, -- Time of these steps.
  c.steps, -- Prefill steps that count.
  c.token_source -- batches (what the server scheduled) or lengths (batch size and input length).
FROM models.prefill_work AS c
LEFT JOIN models.run_chips AS h USING (run_id);

CREATE VIEW metrics.prefill_throughput AS SELECT run_id, prompt_tokens_per_s, prompt_tokens_per_s_per_chip, tokens, time_ms, steps, token_source FROM metrics.prefill_throughput_v1;

CREATE VIEW preconditions.prompt_tokens AS SELECT run_id FROM models.prefill_work;

CREATE VIEW models.timed_collectives AS SELECT
  c.run_id,
  c.event_id, -- The op, or the start of an asynchronous one.
  c.device_id,
  c.instance, -- The execution that the ranks share; NULL if unknown.
  c.phase, c.kind, c.axis,
  c.link, -- dcn between slices, else NULL.
  c.message_bytes, -- Message of the rank; NULL if unknown.
  c.wire_bytes, -- Bytes that it sends; NULL if unknown.
  c.exposed_added_ps -- Time in which the op line runs it and no collective before it.
FROM main.collectives AS c
INNER JOIN models.timed_spans AS s
  ON
    c.run_id = s.run_id AND c.device_id = s.device_id AND c.phase IS NOT DISTINCT FROM s.phase
    AND c.step IS NOT DISTINCT FROM s.step;

CREATE VIEW models.timed_phases AS SELECT
  run_id, device_id, phase,
  NULLIF(COUNT(step), 0) AS steps, -- Steps of the phase on the device that count; NULL without steps.
  CAST(SUM(span_ps) AS BIGINT) AS span_ps, -- Their time.
  CAST(SUM(busy_ps) AS BIGINT) AS busy_ps, -- Union of their leaf ops.
  -- The time is that of a last step, without the wait after it, so it is a lower bound.
  COUNT(*) FILTER (WHERE is_last) > 0 AS is_last
FROM models.timed_spans
GROUP BY run_id, device_id, phase
HAVING SUM(span_ps) > 0;

CREATE VIEW metrics.decode_cost_per_context_token_v1 AS WITH stretches AS (
  SELECT
    run_id, requests, stretch,
    SUM(context_tokens) AS context_tokens,
    SUM(longest_ps) AS time_ps,
    COUNT(*) AS steps
  FROM models.decode_contexts
  WHERE stretch_steps > 2
  GROUP BY run_id, requests, stretch
),

covered AS (
  SELECT
    run_id, requests,
    MIN(context_tokens) AS least_context_tokens,
    MAX(context_tokens) AS most_context_tokens,
    COUNT(DISTINCT context_tokens) AS contexts
  FROM models.decode_contexts
  WHERE stretch_steps > 2
  GROUP BY run_id, requests
),

bases AS (
  SELECT
    run_id, s.requests,
    COUNT(*) AS stretches,
    MIN((s.time_ps - 2 * l.slope_ps * s.context_tokens) / s.steps) AS base_ps
  FROM stretches AS s
  INNER JOIN models.fitted_lines AS l USING (run_id, requests)
  WHERE l.subject = 'decode'
  GROUP BY run_id, s.requests
)

SELECT
  run_id,
  requests, -- Requests of a step, of all data-parallel ranks.
  2 * l.slope_ps / 1e6 AS us_per_token, -- Time of a step per token of context of all its requests together.
  2 * (l.slope_ps - l.slope_error_ps) / 1e6 AS low_us_per_token, -- Lower end of its 95 % interval, as in models.fitted_lines.
  2 * (l.slope_ps + l.slope_error_ps) / 1e6 AS high_us_per_token, -- Upper end.
  -- Upper bound of the time of a step without context: all contexts are taken to be as long as the shortest.
  b.base_ps / 1e6 AS base_us,
  l.r2, -- Share of the variance within the stretches that the line explains; NULL where all steps take the same time.
  c.least_context_tokens, -- Smallest context of a step, at least.
  c.most_context_tokens, -- Largest one, at least.
  c.contexts, -- Number of different ones.
  b.stretches, -- Stretches in which the same requests go on.
  l.points AS steps -- Steps that it covers.
FROM models.fitted_lines AS l
INNER JOIN bases AS b USING (run_id, requests)
INNER JOIN covered AS c USING (run_id, requests)
WHERE l.subject = 'decode' AND l.points >= 6;

CREATE VIEW metrics.decode_cost_per_context_token AS SELECT run_id, requests, us_per_token, low_us_per_token, high_us_per_token, base_us, r2, least_context_tokens, most_context_tokens, contexts, stretches, steps FROM metrics.decode_cost_per_context_token_v1;

CREATE VIEW models.transfer_fit AS SELECT
  run_id, f.kind, f.axis,
  p.link, -- Class of the links that carry them.
  f.points, -- Executions; all ranks of one count once.
  f.async_points, -- Asynchronous ones among them.
  f.sizes, -- Distinct sizes.
  f.slope_ps AS slope_ps_per_byte, -- Time per byte.
  f.slope_error_ps AS slope_error_ps_per_byte, -- Half of its 95 % interval.
  f.intercept_ps, -- Time of an empty message.
  f.intercept_error_ps, -- Half of its 95 % interval.
  f.r2, -- Share of the variance that the line explains.
  -- Whether the slope means more bytes per time than the peak of a device's links in one direction, so that it cannot
  -- be right; NULL if unknown.
  1e3 / f.slope_ps > NULLIF(p.peak_gbps, 0) AS is_above_peak
FROM models.fitted_lines AS f
LEFT JOIN models.collective_links AS p USING (run_id, kind, axis)
LEFT JOIN models.predicted_runs AS g USING (run_id)
WHERE
  f.subject = 'transfer'
  AND f.repeated_sizes >= 3
  AND f.slope_ps > 0
  AND f.r2 >= 0.9e0
  AND g.is_predicted IS NULL;

CREATE VIEW metrics.roofline_v1 AS SELECT
  run_id, instruction_id,
  name, -- Its name.
  category,
  flops_per_s, -- Operations per second of a device, in the executions whose operations are known; NULL without any.
  flops, -- Operations of an execution; their mean.
  bytes_accessed, -- Memory traffic of an execution; their mean.
  wire_bytes, -- Bytes that all executions send; NULL if unknown or not a collective.
  intensity, -- Operations per byte of memory traffic.
  self_ps / (executions * 1e6) AS self_us, -- Mean self time of an execution.
  bound, -- compute, memory, or the class of the links; NULL if a peak, a cost, or what is sent is unknown.
  bound_ps / self_ps AS attained, -- Share of the bound's peak; NULL if the bound is.
  executions,
  -- Share of the self time of the run's compute ops whose flops or bytes are unknown; NULL without such ops.
  unsized_share
FROM models.instruction_bounds;

CREATE VIEW metrics.roofline AS SELECT run_id, instruction_id, name, category, flops_per_s, flops, bytes_accessed, wire_bytes, intensity, self_us, bound, attained, executions, unsized_share FROM metrics.roofline_v1;

CREATE VIEW preconditions.bounded_ops AS SELECT b.run_id FROM models.instruction_bounds AS b INNER JOIN main.instructions AS i USING (run_id, instruction_id) WHERE b.bound_ps > 0 AND i.op_class <> 'communication';

CREATE VIEW metrics.prediction_error_v1 AS WITH chips AS ( -- by their peak in tens of TFLOP/s: a kind of chip has several names
  SELECT run_id, CAST(FLOOR(MIN(peak_flops_per_s) / 1e13 + 5e-1) AS BIGINT) AS peak
  FROM main.devices
  GROUP BY run_id
),

what_if AS (
  SELECT run_id
  FROM main.predictions
  WHERE ici_factor <> 1 OR hbm_factor <> 1
  GROUP BY run_id
),

times AS (
  SELECT t.*, r.origin, c.peak
  FROM models.signed_times AS t
  INNER JOIN main.runs AS r USING (run_id)
  INNER JOIN chips AS c USING (run_id)
  LEFT JOIN what_if AS w USING (run_id)
  WHERE w.run_id IS NULL
),

predicted AS (
  SELECT run_id, peak, signature, SUM(time_ps) AS time_ps, SUM(timed_ops) AS ops
  FROM times
  WHERE origin = 'predicted'
  GROUP BY run_id, peak, signature
),

names AS (
  SELECT run_id, name, signature
  FROM times
  WHERE origin = 'predicted'
  GROUP BY run_id, name, signature
),

-- the kinds of ops of each recorded run, with what has no counterpart
whole AS (
  SELECT run_id, phase, op_kind, variant, SUM(self_ps) AS self_ps, COUNT(*) AS instructions
  FROM times
  WHERE origin = 'recorded'
  GROUP BY run_id, phase, op_kind, variant
),

points AS (
  SELECT
    r.run_id, p.run_id AS predicted_run_id, r.phase, r.op_kind, r.variant, r.self_ps, r.time_ps,
    n.name IS NOT NULL AS is_same_name,
    CAST(p.time_ps * r.timed_ops // p.ops AS BIGINT) AS predicted_ps,
    CAST(r.time_ps AS DOUBLE) * p.ops / (CAST(r.timed_ops AS DOUBLE) * p.time_ps) AS ratio
  FROM times AS r
  INNER JOIN predicted AS p ON r.peak = p.peak AND r.signature = p.signature
  LEFT JOIN names AS n
    ON p.run_id = n.run_id AND r.name = n.name AND r.signature = n.signature
  WHERE r.origin = 'recorded' AND r.time_ps > 0 AND p.time_ps > 0
),

ranked AS (
  SELECT
    *,
    CUME_DIST() OVER (PARTITION BY run_id, predicted_run_id, phase, op_kind, variant ORDER BY ratio) AS quantile
  FROM points
)

SELECT
  k.run_id, -- The recorded run.
  k.predicted_run_id, -- The predicted run.
  k.phase,
  k.op_kind, -- Kind of op, as in models.signed_times.
  k.variant, -- What tells it from others of its kind, as there.
  COUNT(*) AS n, -- Instructions of the recorded run that have a counterpart.
  MIN(k.ratio) FILTER (WHERE k.quantile >= 0.5) AS p50, -- Measured over predicted time of half of them, at most.
  MIN(k.ratio) FILTER (WHERE k.quantile >= 0.1) AS p10, -- The same of one in ten.
  MIN(k.ratio) FILTER (WHERE k.quantile >= 0.9) AS p90, -- The same of nine in ten.
  SUM(k.time_ps) / CAST(SUM(k.predicted_ps) AS DOUBLE) AS time_ratio, -- All measured over all predicted time.
  SUM(k.time_ps) / 1e9 AS measured_ms, -- Measured time of all executions; ranks of a collective count once.
  SUM(k.predicted_ps) / 1e9 AS predicted_ms, -- What was predicted for as many executions.
  -- Share of the kind's self time that has a counterpart.
  SUM(k.self_ps) / CAST(MIN(w.self_ps) AS DOUBLE) AS matched_share,
  -- Whether all instructions of this kind are in the predicted run under the same names, as in the same program.
  COUNT(*) FILTER (WHERE k.is_same_name) = MIN(w.instructions) AS is_same_program
FROM ranked AS k
INNER JOIN whole AS w
  ON
    k.run_id = w.run_id AND k.phase IS NOT DISTINCT FROM w.phase AND k.op_kind = w.op_kind
    AND k.variant IS NOT DISTINCT FROM w.variant
GROUP BY k.run_id, k.predicted_run_id, k.phase, k.op_kind, k.variant;

CREATE VIEW metrics.prediction_error AS SELECT run_id, predicted_run_id, phase, op_kind, variant, n, p50, p10, p90, time_ratio, measured_ms, predicted_ms, matched_share, is_same_program FROM metrics.prediction_error_v1;

CREATE VIEW preconditions.collectives_in_steps AS SELECT run_id FROM models.timed_collectives;

CREATE VIEW metrics.collective_frequency_v1 AS WITH executed AS (
  SELECT run_id, device_id, phase, axis, COUNT(*) AS executions
  FROM models.timed_collectives
  GROUP BY run_id, device_id, phase, axis
)

SELECT
  e.run_id, e.phase, e.axis,
  -- Executions of all devices over the time of all devices.
  SUM(e.executions) * 1000000000 / SUM(t.span_ps) AS executions_per_ms,
  CASE WHEN COUNT(*) FILTER (WHERE t.is_last) > 0 THEN 'upper' END AS bound,
  CAST(SUM(e.executions) AS BIGINT) AS executions,
  SUM(t.span_ps) / 1e9 AS time_ms, -- Time of the phase, of all devices together.
  COUNT(*) AS devices
FROM executed AS e
INNER JOIN models.timed_phases AS t
  ON e.run_id = t.run_id AND e.device_id = t.device_id AND e.phase IS NOT DISTINCT FROM t.phase
GROUP BY e.run_id, e.phase, e.axis;

CREATE VIEW metrics.collective_frequency AS SELECT run_id, phase, axis, executions_per_ms, bound, executions, time_ms, devices FROM metrics.collective_frequency_v1;

CREATE VIEW metrics.communication_fraction_v1 AS WITH communicating AS (
  SELECT run_id
  FROM main.collectives
  GROUP BY run_id
),

exposed AS (
  SELECT run_id, device_id, phase, SUM(exposed_added_ps) AS exposed_ps
  FROM models.timed_collectives
  GROUP BY run_id, device_id, phase
),

shares AS (
  SELECT
    run_id, t.phase, t.is_last,
    COALESCE(x.exposed_ps, 0) / t.span_ps AS share,
    CAST(FLOOR(COALESCE(x.exposed_ps, 0) / t.span_ps * 1e15 + 5e-1) AS BIGINT) AS units
  FROM models.timed_phases AS t
  INNER JOIN communicating USING (run_id)
  LEFT JOIN exposed AS x ON t.run_id = x.run_id AND t.device_id = x.device_id AND t.phase IS NOT DISTINCT FROM x.phase
)

SELECT
  run_id, phase,
  SUM(units) / COUNT(*) / 1e15 AS fraction, -- Exposed communication over the time of the phase, mean over devices.
  CASE WHEN COUNT(*) FILTER (WHERE is_last) > 0 THEN 'upper' END AS bound,
  MIN(share) AS min_fraction, -- The lowest of a device.
  MAX(share) AS max_fraction, -- The highest of a device.
  -- How many times faster the phase would be without any exposed communication, including the waiting in it, by
  -- Amdahl's law: 1 / (1 - fraction); NULL if the phase has nothing else.
  1 / NULLIF(1 - SUM(units) / COUNT(*) / 1e15, 0) AS speedup_limit,
  COUNT(*) AS devices -- Devices that ran the phase.
FROM shares
GROUP BY run_id, phase;

CREATE VIEW metrics.communication_fraction AS SELECT run_id, phase, fraction, bound, min_fraction, max_fraction, speedup_limit, devices FROM metrics.communication_fraction_v1;

CREATE VIEW metrics.copy_overhead_v1 AS WITH exposed AS (
  SELECT c.run_id, c.device_id, c.phase, SUM(c.exposed_added_ps) AS exposed_copy_ps
  FROM models.copy_windows AS c
  INNER JOIN models.timed_spans AS s
    ON
      c.run_id = s.run_id AND c.device_id = s.device_id AND c.phase IS NOT DISTINCT FROM s.phase
      AND c.step IS NOT DISTINCT FROM s.step
  GROUP BY c.run_id, c.device_id, c.phase
),

copying AS (
  SELECT run_id
  FROM models.copy_windows
  GROUP BY run_id
)

SELECT
  run_id, t.phase,
  SUM(COALESCE(x.exposed_copy_ps, 0)) / SUM(t.span_ps) AS overhead, -- Exposed copy time over the time of the phase.
  CASE WHEN COUNT(*) FILTER (WHERE t.is_last) > 0 THEN 'upper' END AS bound,
  SUM(COALESCE(x.exposed_copy_ps, 0)) / 1e9 AS exposed_ms, -- Exposed copy time of all devices.
  SUM(t.span_ps) / 1e9 AS time_ms, -- Time of the phase, of all devices together.
  COUNT(*) AS devices -- Devices that ran the phase.
FROM models.timed_phases AS t
INNER JOIN copying USING (run_id)
LEFT JOIN exposed AS x ON t.run_id = x.run_id AND t.device_id = x.device_id AND t.phase IS NOT DISTINCT FROM x.phase
GROUP BY run_id, t.phase;

CREATE VIEW metrics.copy_overhead AS SELECT run_id, phase, overhead, bound, exposed_ms, time_ms, devices FROM metrics.copy_overhead_v1;

CREATE VIEW metrics.faster_chips_v1 AS WITH bounded AS (
  SELECT run_id, instruction_id, compute_ps, memory_ps, COALESCE(link_ps, 0) AS link_ps, bound_ps, self_ps
  FROM models.instruction_bounds
  WHERE bound_ps > 0
),

timed AS (
  SELECT o.run_id, o.phase, o.instruction_id, SUM(o.busy_ps) AS busy_ps
  FROM models.leaf_ops AS o
  INNER JOIN models.timed_spans AS s
    ON
      o.run_id = s.run_id AND o.device_id = s.device_id AND o.phase IS NOT DISTINCT FROM s.phase
      AND o.step IS NOT DISTINCT FROM s.step
  WHERE o.op_class <> 'communication'
  GROUP BY o.run_id, o.phase, o.instruction_id
),

known AS (
  SELECT
    run_id, t.phase, t.busy_ps, b.compute_ps, b.memory_ps, b.link_ps, b.bound_ps, f.factor,
    (4 - f.saved_quarters) / 4e0 AS remaining,
    -- Share of the op's time that the bound would take at the peak.
    LEAST(b.bound_ps / b.self_ps, 1) AS attained
  FROM timed AS t
  INNER JOIN bounded AS b USING (run_id, instruction_id)
  INNER JOIN models.speed_factors AS f USING (run_id)
),

shortened AS (
  SELECT
    run_id, phase, factor, busy_ps, attained,
    'hbm' AS resource,
    1 - GREATEST(memory_ps * remaining, compute_ps, link_ps) / bound_ps AS saved
  FROM known
  UNION ALL
  SELECT
    run_id, phase, factor, busy_ps, attained,
    'compute' AS resource,
    1 - GREATEST(memory_ps, compute_ps * remaining, link_ps) / bound_ps AS saved
  FROM known
),

rounded AS (
  SELECT
    run_id, phase, factor, resource, busy_ps,
    CAST(FLOOR(1000 * busy_ps * saved + 5e-1) AS BIGINT) AS saved_fs,
    CAST(FLOOR(1000 * busy_ps * saved * attained + 5e-1) AS BIGINT) AS at_peak_fs
  FROM shortened
),

summed AS (
  SELECT
    run_id, phase, factor, resource,
    SUM(saved_fs) AS saved_fs,
    SUM(at_peak_fs) AS at_peak_fs,
    SUM(busy_ps) AS known_ps
  FROM rounded
  GROUP BY run_id, phase, factor, resource
),

phases AS (
  SELECT run_id, phase, SUM(span_ps) AS span_ps
  FROM models.timed_phases
  GROUP BY run_id, phase
)

SELECT
  s.run_id, s.phase,
  s.resource, -- hbm or compute.
  s.factor, -- How many times faster it is - 2, 4 or infinite.
  s.saved_fs / (p.span_ps * 10) AS saved_percent, -- Share of the time saved at most.
  'upper' AS bound,
  s.at_peak_fs / (p.span_ps * 10) AS at_peak_percent, -- Share saved if the rest of each op stays.
  s.saved_fs / 1e12 AS saved_ms, -- Time saved on all devices.
  p.span_ps / 1e9 AS time_ms, -- Time of the phase, of all devices together.
  s.known_ps / p.span_ps AS known_share -- Share of the time in ops whose bound is known.
FROM summed AS s
INNER JOIN phases AS p ON s.run_id = p.run_id AND s.phase IS NOT DISTINCT FROM p.phase;

CREATE VIEW metrics.faster_chips AS SELECT run_id, phase, resource, factor, saved_percent, bound, at_peak_percent, saved_ms, time_ms, known_share FROM metrics.faster_chips_v1;

CREATE VIEW metrics.traffic_rate_v1 AS WITH moved AS (
  SELECT
    run_id, device_id, phase, kind, axis,
    COUNT(message_bytes) AS sized,
    SUM(message_bytes) AS message_bytes,
    CASE WHEN COUNT(wire_bytes) = COUNT(*) THEN SUM(wire_bytes) END AS wire_bytes
  FROM models.timed_collectives
  GROUP BY run_id, device_id, phase, kind, axis
)

SELECT
  m.run_id, m.phase, m.kind, m.axis,
  SUM(m.message_bytes) * 1e9 / SUM(t.span_ps) AS message_bytes_per_ms, -- Message bytes of all devices over their time.
  CASE WHEN COUNT(*) FILTER (WHERE t.is_last) > 0 THEN 'upper' END AS bound,
  -- Bytes sent, in the same way; NULL where not known of all executions.
  CASE
    WHEN COUNT(m.wire_bytes) = COUNT(*) THEN SUM(m.wire_bytes) * 1e9 / SUM(t.span_ps)
  END AS wire_bytes_per_ms,
  CAST(SUM(m.message_bytes) AS BIGINT) AS message_bytes, -- Message bytes of all devices.
  SUM(t.span_ps) / 1e9 AS time_ms, -- Time of the phase, of all devices together.
  COUNT(*) AS devices
FROM moved AS m
INNER JOIN models.timed_phases AS t
  ON m.run_id = t.run_id AND m.device_id = t.device_id AND m.phase IS NOT DISTINCT FROM t.phase
GROUP BY m.run_id, m.phase, m.kind, m.axis
HAVING SUM(m.sized) > 0;

CREATE VIEW metrics.traffic_rate AS SELECT run_id, phase, kind, axis, message_bytes_per_ms, bound, wire_bytes_per_ms, message_bytes, time_ms, devices FROM metrics.traffic_rate_v1;

CREATE VIEW models.idle_parts AS WITH inside AS (
  SELECT run_id, g.device_id, g.phase, g.next, SUM(g.gap_ps) AS idle_ps
  FROM models.device_gaps AS g
  INNER JOIN models.steps AS s USING (run_id, device_id, step)
  WHERE s.is_timed
  GROUP BY run_id, g.device_id, g.phase, g.next
),

whole AS (
  SELECT run_id, device_id, phase, SUM(idle_ps) AS idle_ps
  FROM inside
  GROUP BY run_id, device_id, phase
),

parts AS (
  SELECT
    run_id, device_id, phase, CASE
      WHEN next = 'launch' THEN 'before a launch'
      WHEN next = 'tick' THEN 'before a pipeline''s tick'
      WHEN next = 'collective' THEN 'before another collective'
      ELSE 'before another op'
    END AS part,
    CASE WHEN next = 'launch' THEN 0 WHEN next = 'tick' THEN 1 WHEN next = 'collective' THEN 2 ELSE 3 END AS position,
    idle_ps
  FROM inside
  UNION ALL
  SELECT
    t.run_id, t.device_id, t.phase,
    'between steps' AS part,
    4 AS position,
    GREATEST(t.span_ps - t.busy_ps - COALESCE(w.idle_ps, 0), 0) AS idle_ps
  FROM models.timed_phases AS t
  LEFT JOIN whole AS w ON t.run_id = w.run_id AND t.device_id = w.device_id AND t.phase IS NOT DISTINCT FROM w.phase
  WHERE t.steps IS NOT NULL
)

SELECT
  p.run_id, p.device_id, p.phase,
  -- before a launch (the first op of an execution of a program), before a pipeline's tick, before another collective,
  -- before another op, or between steps, which includes gaps of up to a microsecond.
  p.part,
  p.position, -- Position of the part, from 0.
  CAST(SUM(p.idle_ps) AS BIGINT) AS idle_ps, -- Time without an op over the steps.
  SUM(p.idle_ps) / (MIN(t.steps) * 1e9) AS mean_ms -- Time per step.
FROM parts AS p
INNER JOIN models.timed_phases AS t
  ON p.run_id = t.run_id AND p.device_id = t.device_id AND p.phase IS NOT DISTINCT FROM t.phase
LEFT JOIN models.predicted_runs AS g ON p.run_id = g.run_id
WHERE g.is_predicted IS NULL
GROUP BY p.run_id, p.device_id, p.phase, p.part, p.position;

CREATE VIEW metrics.faster_links_v1 AS WITH fits AS (
  SELECT run_id, kind, axis, slope_ps_per_byte, intercept_ps
  FROM models.transfer_fit
  WHERE NOT COALESCE(is_above_peak, FALSE)
),

timed AS (
  SELECT
    run_id, c.phase, c.link, c.axis,
    c.exposed_added_ps AS exposed_ps,
    f.slope_ps_per_byte * i.bus_bytes AS byte_ps,
    GREATEST(i.transfer_ps - GREATEST(f.intercept_ps, 0), 0) AS beyond_latency_ps,
    CASE WHEN f.run_id IS NULL THEN 'exposed' ELSE 'fit' END AS basis
  FROM models.timed_collectives AS c
  LEFT JOIN models.collective_instances AS i USING (run_id, instance)
  LEFT JOIN fits AS f
    ON i.run_id = f.run_id AND i.kind = f.kind AND i.axis = f.axis AND NOT i.is_partial AND i.bus_bytes > 0
),

saved AS (
  SELECT
    run_id, t.phase, t.link, t.axis, t.basis, a.factor, CASE
      WHEN t.basis = 'fit'
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
  s.basis, -- What the value rests on - fit, or exposed where no fit tells the part of the bandwidth.
  s.factor, -- How many times faster the links are - 2, 4 or infinite.
  s.saved_fs / (p.span_ps * 10) AS saved_percent, -- Share of the time saved.
  CASE WHEN s.basis = 'exposed' THEN 'upper' END AS bound,
  s.saved_fs / 1e12 AS saved_ms, -- Time saved on all devices.
  p.span_ps / 1e9 AS time_ms, -- Time of the phase, of all devices together.
  s.executions -- Executions of collectives over the links, on all devices.
FROM summed AS s
INNER JOIN phases AS p ON s.run_id = p.run_id AND s.phase IS NOT DISTINCT FROM p.phase;

CREATE VIEW metrics.faster_links AS SELECT run_id, phase, link, axis, basis, factor, saved_percent, bound, saved_ms, time_ms, executions FROM metrics.faster_links_v1;

CREATE VIEW metrics.hockney_v1 AS SELECT
  run_id, kind, axis,
  link, -- Class of the links that carry them: die, ici, nvlink or fabric, or mixed; NULL where not known.
  intercept_ps / 1e6 AS latency_us, -- Time of an empty message; may be below 0 if the model does not fit.
  (intercept_ps - intercept_error_ps) / 1e6 AS latency_low_us, -- Lower end of its 95 % interval.
  (intercept_ps + intercept_error_ps) / 1e6 AS latency_high_us, -- Upper end.
  1e3 / slope_ps_per_byte AS bandwidth_gbps, -- Bytes per time beyond the latency, decimal.
  -- Lower end of its 95 % interval.
  1e3 / (slope_ps_per_byte + slope_error_ps_per_byte) AS bandwidth_low_gbps,
  -- Upper end; NULL if the interval of the time per byte reaches 0.
  CASE
    WHEN slope_ps_per_byte > slope_error_ps_per_byte
      THEN 1e3 / (slope_ps_per_byte - slope_error_ps_per_byte)
  END AS bandwidth_high_gbps,
  r2, -- Share of the variance that the line explains.
  points, -- Executions; all ranks of one count once.
  async_points, -- Asynchronous ones among them.
  sizes, -- Distinct sizes.
  -- Whether the bandwidth is above the peak of a device's links in one direction, so that the fit cannot be right;
  -- NULL if unknown.
  is_above_peak
FROM models.transfer_fit;

CREATE VIEW metrics.hockney AS SELECT run_id, kind, axis, link, latency_us, latency_low_us, latency_high_us, bandwidth_gbps, bandwidth_low_gbps, bandwidth_high_gbps, r2, points, async_points, sizes, is_above_peak FROM metrics.hockney_v1;

CREATE VIEW preconditions.fitted_transfers AS SELECT run_id FROM models.transfer_fit;

CREATE VIEW metrics.device_idle_v1 AS WITH parts AS (
  SELECT
    run_id, device_id, phase,
    SUM(idle_ps) FILTER (WHERE part = 'before a launch') AS launch_ps,
    SUM(idle_ps) FILTER (WHERE part = 'before a pipeline''s tick') AS tick_ps,
    SUM(idle_ps) FILTER (WHERE part = 'before another collective') AS collective_ps,
    SUM(idle_ps) FILTER (WHERE part = 'before another op') AS other_ps,
    SUM(idle_ps) FILTER (WHERE part = 'between steps') AS between_ps
  FROM models.idle_parts
  GROUP BY run_id, device_id, phase
)

SELECT
  t.run_id, t.phase, t.device_id,
  GREATEST(t.span_ps - t.busy_ps, 0) / t.span_ps AS idle_ratio, -- Share of the span without an op.
  CASE WHEN t.is_last THEN 'lower' END AS bound,
  t.busy_ps / 1e9 AS busy_ms, -- Union of the leaf ops.
  t.span_ps / 1e9 AS span_ms, -- Time of the steps that count.
  -- Idle time per step before the first op of another execution of a program; NULL without steps, as in all parts.
  COALESCE(p.launch_ps, 0) / (t.steps * 1e9) AS before_launch_ms,
  -- Before a collective on axis pp, or the start or done of one, with which a tick of a pipeline hands over.
  COALESCE(p.tick_ps, 0) / (t.steps * 1e9) AS before_tick_ms,
  COALESCE(p.collective_ps, 0) / (t.steps * 1e9) AS before_collective_ms, -- Before any other collective.
  COALESCE(p.other_ps, 0) / (t.steps * 1e9) AS before_other_ms, -- Before other ops.
  p.between_ps / (t.steps * 1e9) AS between_steps_ms, -- Before a step's first op and after its last.
  t.steps -- Steps that count of the phase on the device; NULL without steps.
FROM models.timed_phases AS t
LEFT JOIN parts AS p ON t.run_id = p.run_id AND t.device_id = p.device_id AND t.phase IS NOT DISTINCT FROM p.phase
LEFT JOIN models.predicted_runs AS g ON t.run_id = g.run_id
WHERE g.is_predicted IS NULL;

CREATE VIEW metrics.device_idle AS SELECT run_id, phase, device_id, idle_ratio, bound, busy_ms, span_ms, before_launch_ms, before_tick_ms, before_collective_ms, before_other_ms, between_steps_ms, steps FROM metrics.device_idle_v1;

CREATE VIEW metrics.catalog AS SELECT "metric", "version", "status", "unit", "polarity", "scope", "grain", "value", "description", "notes", "ccl_bench", "fingerprint", "columns", "changed", "deprecated" FROM (VALUES ('ccl_average_memory_bandwidth', 1, 'compatibility', 'GB/s', 'higher_is_better', 'run', 'run_id', 'bandwidth_gbps', 'Reproduces CCL-Bench''s average_memory_bandwidth with its faults, to explain a published number; use copy_bandwidth instead.', 'It divides the bytes of copies by the time from the start of the start half to the start of the done half, on the device''s own clock. It pairs halves by the number in their names alone, in file order and whatever the device. Halves without a number are left out. In Kineto traces it divides the bytes of all copies and sets, and of host calls that state bytes, by their duration. It does not look at the memories. Exports of Nsight Systems are read alike, without the sets.', 'average_memory_bandwidth', '0d64f060eba4d3bb6f99d6f19746aeda29ebe8251fcf611812f57a7048015d03', '{"run_id": "The run.", "bandwidth_gbps": "Bytes over time.", "copies": "Pairs covered.", "bytes": "Memory traffic of the starts."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_avg_step_time', 1, 'compatibility', 's', 'lower_is_better', 'run', 'run_id', 'avg_step_time_s', 'Reproduces CCL-Bench''s avg_step_time with its faults, to explain a published number; use step_time instead.', 'It reads host events named exactly $core.py:331 step, a line number of one version of vLLM. It takes their mean duration, prefill and decode alike, without the gaps between. If there are more than two, it leaves out the first and the last of the file. A run without such events gets the whole span of the trace over the iterations of the card, rounded to microseconds. In Kineto traces it reads the host''s marks of PyTorch, or else of vLLM, or else of SGLang, and takes the mean of the ranks; it knows neither marks such as execute_32_context_0 nor steps in exports of Nsight Systems.', 'avg_step_time', 'dc36a3a465d2440ca2ad2219696ab2be8f9f2e56d4a8f4d8f01f9484175222fa', '{"run_id": "The run.", "avg_step_time_s": "Mean duration, or the share of an iteration in the span.", "steps": "Events that it covers, or iterations.", "has_marks": "It is read from events and not from the span."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_bandwidth_utilization', 1, 'compatibility', 'GB/s', 'higher_is_better', 'run', 'run_id, kind', 'bandwidth', 'Reproduces CCL-Bench''s bandwidth_utilization_* with its faults, to explain a published number; use collective_transfer instead.', 'It takes the median over events of bytes_accessed / 2^30 x f / duration, where f is 2 (n-1)/n for all-reduce and (n-1)/n otherwise. bytes_accessed is memory traffic, about twice the message. n is not the size of a group but the number of devices with events of the same all_reduce_unique_id, or for other kinds of the same name. The unit is GiB/s though it is called GB/s. Waiting for late ranks counts as transfer. In Kineto traces it reads the first rank alone; there the bytes are the elements that go in, so that an all-gather of n ranks is n times too slow.', 'bandwidth_utilization', '8af1a48f944b7608e4ff22338094ccaad36c8e31a24d021e00ffd99c295b2cfb', '{"run_id": "The run.", "kind": "The category.", "bandwidth": "Median, in GiB/s.", "events": "Events covered.", "devices": "Most devices taken for a group."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_coll_call_num', 1, 'compatibility', '1', 'none', 'run', 'run_id', 'calls', 'Reproduces CCL-Bench''s coll_call_num on GPUs with its faults, to explain a published number; use collective_count instead.', 'It counts kernels by the names of NCCL from version 2.19 on, in the file kineto_trace_0.json alone. Files of other names, and kernels of older versions, count as 0.', 'coll_call_num', 'bf6ad99315cd140e0ec867122098d58e2cf40fa6ba1358a0cdf7d2a22067e4a4', '{"run_id": "The run.", "calls": "Kernels of the first rank."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_collective_vol', 1, 'compatibility', 'GB', 'lower_is_better', 'run', 'run_id, kind', 'volume_gb', 'Reproduces CCL-Bench''s collective_vol_*_gb with its faults, to explain a published number; use traffic_volume instead.', 'It sums the profiler''s bytes_accessed of events whose category is exactly a collective''s, over all devices and the whole capture. That is memory traffic, for an all-reduce at least twice the message, and not what goes over links. A kind without an event has 0. In Kineto traces it sums the elements that go in times their size over the first rank alone, and has no value for exports of Nsight Systems.', 'collective_vol', '6ac22fe47ebbaa4911031203cd895df3b1a925127bac71d2011a4a8e05bbd171', '{"run_id": "The run.", "kind": "The category, or total for all four.", "volume_gb": "Memory traffic in decimal GB.", "events": "Events covered."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_communication_fraction', 1, 'compatibility', '%', 'lower_is_better', 'run', 'run_id', 'fraction_percent', 'Reproduces CCL-Bench''s communication_fraction with its faults, to explain a published number; use communication_fraction instead.', 'Per TPU, it divides the duration of events whose name or category is exactly a collective''s by the duration of all events, and takes the mean over TPUs. A run without TPUs is divided by process. Shares are whole units of 1e-15, so that their sum is exact in any order. The denominator includes programs, steps and loops beside their ops. Most asynchronous and all fused collectives are missed, and a local broadcast counts. Events that state no duration on the device''s clock count in microseconds, and the others in nanoseconds. In Kineto traces it divides the time of kernels with a word of communication by that of all kernels, during each of PyTorch''s marks on the host but the first and the last. If the GPU is behind the host, these kernels belong to other steps. The value is the mean over steps and ranks. Traces without such marks, and exports of Nsight Systems, are divided as a whole.', 'communication_fraction', 'ead724b33485d5f76e631aeb4183533d8d236e041ed094bfce3f9c4d3de11afc', '{"run_id": "The run.", "fraction_percent": "Mean share in percent.", "devices": "Processes covered."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_compute_comm_overlap', 1, 'compatibility', '%', 'higher_is_better', 'run', 'run_id', 'overlap_percent', 'Reproduces CCL-Bench''s compute_comm_overlap with its faults, to explain a published number; use overlap_ratio instead.', 'It divides the time in which an event with a word of communication in its name and one with a word of compute run together by the time of communication. Devices and hosts are merged into one timeline, so one device''s compute hides another''s communication. Programs, loops and host frames count by their names. Only the host''s steps count, each for itself if they overlap. If there are more than two, the first and the last do not count. Steps are events named $core.py:331 step, a line number of one version of vLLM, or else StepMarker events of more than a tenth of the longest. In Kineto traces every kernel without a word of communication computes, the marks on the host are those of PyTorch, vLLM or SGLang, and the value is the mean of the ranks; in exports of Nsight Systems the whole trace counts, and each device for itself.', 'compute_comm_overlap', '3867cfb378bd4cc3d7b0e98f59323cc5f8d7725fa3274ce254e03443385e3473', '{"run_id": "The run.", "overlap_percent": "Share of the communication in percent.", "communication_ms": "Time with communication in the steps.", "steps": "Steps that count."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_dominant_kernel_concentration', 1, 'compatibility', '%', 'none', 'run', 'run_id', 'share_percent', 'Reproduces CCL-Bench''s dominant_kernel_concentration with its faults, to explain a published number; use op_time_share instead.', 'It takes the largest share of a category in the duration of all events that have one. A while loop counts beside the ops in its body, so its share is too large and theirs are too small. Events that state no duration on the device''s clock count in microseconds, and the others in nanoseconds. In Kineto traces and exports of Nsight Systems it takes the largest share of a kernel, by its name.', 'dominant_kernel_concentration', 'c3c1d907b46a0b25f2cd52fd63cf7c8f722fc2ba2317874c92bf532ce3e25962', '{"run_id": "The run.", "share_percent": "Largest share in percent.", "total_ms": "Duration of all events with a category."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_load_imbalance_ratio', 1, 'compatibility', 'ratio', 'lower_is_better', 'run', 'run_id', 'ratio', 'Reproduces CCL-Bench''s load_imbalance_ratio on GPUs with its faults, to explain a published number; use load_imbalance instead.', 'It divides the time in which the busiest GPU runs kernels by that of the least busy. Waiting in a collective counts as running, so the rank for which the others wait looks least loaded.', 'load_imbalance_ratio', 'c10cc82f3baf55642f87b52036570d4fb6d6776cb194d91b8951e7b78e9eda30', '{"run_id": "The run.", "ratio": "Largest over smallest time.", "devices": "Files, or devices of an export of Nsight Systems."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_mean_sm_coverage', 1, 'compatibility', '%', 'higher_is_better', 'run', 'run_id', 'coverage_percent', 'Reproduces CCL-Bench''s mean_sm_coverage on Kineto traces with its faults, to explain a published number; use device_idle instead.', 'It takes the mean of the blocks of a kernel per multiprocessor, at most 1, weighted by the kernels'' durations. A block may use any part of a multiprocessor, time without kernels does not count, and traces of AMD state no such number.', 'mean_sm_coverage', 'ef30a54181f9844a2b2e853a3b466f956f93c74921fb766d5d79d9ce94627b7a', '{"run_id": "The run.", "coverage_percent": "Mean share in percent.", "kernels": "Kernels covered."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_memory_transfer_overhead', 1, 'compatibility', '%', 'lower_is_better', 'run', 'run_id', 'overhead_percent', 'Reproduces CCL-Bench''s memory_transfer_overhead with its faults, to explain a published number; use copy_overhead instead.', 'It takes the time from the start of a copy''s start half to the start of its done half in which no compute runs. It divides this by the sum of the host''s steps, events named exactly $core.py:331 step, a line number of one version of vLLM. Devices are merged into one timeline of their own clocks, so one device''s compute hides another''s copies. Compute is every event of a TPU except numbered halves of copies, programs named jit_ and dependency-wait. So collectives, halves without a number, loops and steps are compute. The result is rounded to four decimals. In Kineto traces copies are kernels with a word such as copy_kernel in their names, not the copies by the driver; their time without compute is divided by that from the first to the last kernel, both summed over the ranks. In exports of Nsight Systems the copies are those by the driver, of all devices in one timeline.', 'memory_transfer_overhead', 'bb49fd6bfc7e0f875f2a70397d0efbb036d1e5f063bf475e6f9a40c55e17172a', '{"run_id": "The run.", "overhead_percent": "Share of the steps'' time in percent.", "exposed_ms": "Time in copies without compute.", "steps_ms": "Duration of the host''s steps."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_mfu', 1, 'compatibility', '%', 'higher_is_better', 'run', 'run_id', 'mfu_percent', 'Reproduces CCL-Bench''s mfu with its faults, to explain a published number; use mfu instead.', 'It divides the operations of all events that state some by the union of these events'' intervals over all devices, and by 918e12 for every chip of the run. Idle time does not count. A while loop counts with its body, and all-reduces count. The only TPU that it knows is the v6e. The result is rounded to four decimals. For Kineto traces it computes the operations of the prompt''s tokens from the card, three times as many in training, and divides them by the mean duration of PyTorch''s marks on the host; it knows the peaks of A100 and H100.', 'mfu', 'f6037a784b22f9a32916dfc8dc78147948e66fc2f719972a0d763313ab24b499', '{"run_id": "The run.", "mfu_percent": "Utilization in percent."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_moe_fraction', 1, 'compatibility', '%', 'none', 'run', 'run_id', 'fraction_percent', 'Reproduces CCL-Bench''s moe_fraction on GPUs with its faults, to explain a published number; use moe_fraction instead.', 'It divides the duration of kernels with a word such as moe, expert, topk or dispatch in their names by that of all kernels. The products of experts have other names, such as _matmul_ogs_, and a sort of CUB dispatches too.', 'moe_fraction', 'e485e3dad0b217fb25af818d90f4601220a057a24eea9c4106d56adf3e459b5a', '{"run_id": "The run.", "fraction_percent": "Share in percent.", "kernels": "Kernels with such a word."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_straggler', 1, 'compatibility', 'ratio', 'lower_is_better', 'run', 'run_id', 'delay', 'Reproduces CCL-Bench''s straggler on GPUs with its faults, to explain a published number; use straggler_ranking instead.', 'It compares the ranks by the time of their NCCL kernels, so the rank for which the others wait has the least. Only files named like rank0_trace.json count, and only kernels of NCCL from version 2.19 on. Anything else has 0.', 'straggler', 'a38cd8097fb08ba0446e16507dadae06ef650820e9b9203892fcabe1bc0cd21d', '{"run_id": "The run.", "delay": "Spread over the longest time.", "slowdown": "Longest over shortest time."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_total_communication_time', 1, 'compatibility', 's', 'lower_is_better', 'run', 'run_id', 'communication_s', 'Reproduces CCL-Bench''s total_communication_time with its faults, to explain a published number; use communication_time instead.', 'It sums the duration on the device''s clock of all events with a word of communication in their name, over all devices, so it grows with their number. If none states such a duration, it sums the plain durations, including those of host calls such as collective_rpc. The sum is divided by the card''s iterations, and is 0 if no name has such a word. In Kineto traces it takes the union of such kernels from the first to the last of PyTorch''s marks on the host, without the first and the last step, divides it by these steps, and takes the mean of the ranks. In exports of Nsight Systems it sums the whole trace over all devices.', 'total_communication_time', '4789a75f28c4c32c28928698bc71851d816d8142003d6f4b38ac5b1fa9a55596', '{"run_id": "The run.", "communication_s": "Duration over all devices per iteration.", "events": "Events whose name has such a word."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_tpot', 1, 'compatibility', 's', 'lower_is_better', 'run', 'run_id', 'tpot_s', 'Reproduces CCL-Bench''s tpot with its faults, to explain a published number; use tpot instead.', 'It reads host events named exactly $core.py:331 step, a line number of one version of vLLM. It takes all but the first for decode steps, even if they are prefills, and leaves out the last if there are more than two. The value is their mean duration without the gaps between. It has no value for training or for an output of one token. In Kineto traces the marks are execute_context_ of vLLM or else run_batch of SGLang, and the value is the mean of the ranks.', 'tpot', 'b10d0ffbdb9fb7cd3a28633d3047c058550a6e4c9fafb3ad65eaf7bd2bd504a3', '{"run_id": "The run.", "tpot_s": "Mean duration of these events.", "steps": "Events covered."}', 'First version.', CAST(NULL AS VARCHAR)), ('ccl_ttft', 1, 'compatibility', 's', 'lower_is_better', 'run', 'run_id', 'ttft_s', 'Reproduces CCL-Bench''s ttft with its faults, to explain a published number; use ttft instead. It reads host events named exactly $core.py:331 step, a line number of one version of vLLM, and takes the duration of the first, whether it is a prefill or not. It has no value for training.', 'In Kineto traces it reads the marks execute_context_ of vLLM or else run_batch of SGLang, and takes the mean of the first of each rank.', 'ttft', 'deffe784b92113b0e521e9929091120ddb4363c4bc2755e80fb6030302a0c968', '{"run_id": "The run.", "ttft_s": "Duration of the first event.", "steps": "Events covered, always 1."}', 'First version.', CAST(NULL AS VARCHAR)), ('collective_attribution', 1, 'experimental', 'ratio', 'none', 'run', 'run_id, phase, kind, axis', 'bound_share', 'Where the time of collectives goes. In overlap the device runs other ops, in arrival it waits for the last rank, and the rest is transfer. The largest part bounds the collectives.', 'Faster links shorten transfer. Better balance shortens arrival. Overlap costs no time. Arrival is that of sync_wait. Executions with ranks outside the capture are left out. Between slices the ranks are not known, so transfer and arrival are one part. A collective inside an op that computes is all overlap.', CAST(NULL AS VARCHAR), '2035033be260fd12c6373c83a1c0f77ae55fec1e224ba91050600747552cbb96', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "kind": "Kind of collective.", "axis": "Mesh axes of its groups.", "bound_share": "Share of the windows of the largest part.", "bound_by": "That part: transfer, arrival or overlap; between slices, transfer or arrival together, or overlap.", "transfer_share": "Share of the transfer, which is what overlap and arrival leave.", "arrival_share": "Share in which ranks wait for the last to arrive; NULL between slices, where transfer_share holds it.", "overlap_share": "Share that other ops hide.", "window_ms": "Windows of all ranks.", "exposed_ms": "What other ops do not hide.", "executions": "Number of executions, summed over devices.", "wire_gbps": "Bytes that the ranks send over the shortest time of each execution, decimal; NULL where not known. Well below the links'' rate, a transfer is bound by latency.", "link_share": "Share of the links'' peak; NULL where not known."}', 'First version.', CAST(NULL AS VARCHAR)), ('collective_count', 1, 'stable', 'count', 'none', 'run', 'run_id, phase, kind, axis', 'executions_per_step', 'Executions of collectives per device and step, over the devices that take part. Without marks, every execution of a program is a step and phase is NULL. Without any steps, the capture counts as one.', CAST(NULL AS VARCHAR), 'coll_call_num', '5abbbae29830543e0a19b35a33b0eae816b250117af6273bdae996c32e9c57e5', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "kind": "Kind of collective.", "axis": "Mesh axes of its groups.", "executions_per_step": "Mean over devices and steps.", "min_per_step": "Mean over steps, on the device with the fewest.", "max_per_step": "Mean over steps, on the device with the most.", "executions": "Number of executions, summed over devices.", "devices": "Devices that take part.", "device_steps": "Steps of these devices together.", "phase_device_steps": "Steps of all devices that take part in any collective of the phase. The executions of all kinds and axes over these are the collectives of a step."}', 'First version.', CAST(NULL AS VARCHAR)), ('collective_frequency', 1, 'stable', '1/ms', 'none', 'run', 'run_id, phase, axis', 'executions_per_ms', 'Executions of collectives on a device per millisecond of the phase, over all kinds of an axis and the devices that take part. The time of a phase is the time of its steps, including the gaps between them. The last step counts only in a phase that has no other (models.timed_spans).', CAST(NULL AS VARCHAR), CAST(NULL AS VARCHAR), '97290492337e9956f673280f49e04cf805af128066ccd60f7d325fc951d6cd83', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "axis": "Mesh axes of its groups.", "executions_per_ms": "Executions of all devices over the time of all devices.", "bound": "lower or upper if the true value is at least or at most this one; NULL if the value is exact.", "executions": "Number of executions, summed over devices.", "time_ms": "Time of the phase, of all devices together.", "devices": "Devices that take part."}', 'First version.', CAST(NULL AS VARCHAR)), ('collective_skew', 1, 'stable', 'us', 'lower_is_better', 'run', 'run_id, phase, axis', 'skew_us', 'Start of the last rank of a collective minus the start of the first, as the mean over executions. last_device_id is the device that was last most often. Executions with ranks outside the capture count only in a row that has no others; their skew is a lower bound.', 'Executions with one rank are left out.', 'straggler', '65684510692739cb081c96b742c049fcbdff889831629908230248e08d9ff24f', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "axis": "Mesh axes of its groups.", "skew_us": "Mean skew.", "bound": "lower or upper if the true value is at least or at most this one; NULL if the value is exact.", "p50_us": "Median.", "p90_us": "90th percentile.", "p99_us": "99th percentile.", "executions": "Executions covered.", "last_device_id": "Device that alone was last most often; NULL if none was, or several as often.", "last_share": "Share of the executions in which one of these was last."}', 'First version.', CAST(NULL AS VARCHAR)), ('collective_transfer', 1, 'stable', 'us', 'lower_is_better', 'run', 'run_id, phase, kind, axis, size_class', 'transfer_us', 'Latency and bandwidth of collectives, which other tools call collective_latency and collective_bandwidth. The transfer time of an execution is the shortest time over its ranks. Bus bandwidth is message bytes times the factor of the kind over the transfer time, in decimal GB.', 'Mean and percentiles (by nearest rank) are over executions; a bandwidth divides the sum of the bytes by the sum of the time. The factor is 2 (n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, and 1 for collective-permute; the product is rounded down to whole bytes. Executions with ranks outside the capture count only in a row that has no others. The shortest time over the ranks at hand is then an upper bound of the transfer time, and bandwidths and waiting are lower bounds. The window of an asynchronous collective may outlast its transfer, so its time is an upper bound and its bandwidth a lower bound.', 'bandwidth_utilization, comm_kernel_breakdown_tpu', '627fa798e53f96d07f64f806fbf7daa8d1e537110ea4a9259e42dcb3dd87ab17', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "kind": "Kind of collective.", "axis": "Mesh axes of its groups.", "size_class": "Range of the message size; NULL if unknown.", "size_from_bytes": "Smallest message size of the class; NULL if unknown.", "transfer_us": "Mean transfer time.", "bound": "lower or upper if the true value is at least or at most this one; NULL if the value is exact.", "p50_us": "Median.", "p90_us": "90th percentile.", "p99_us": "99th percentile.", "wait_us": "Mean time that a rank waits: its time beyond the transfer time, as far as models.collective_ranks counts it.", "bus_gbps": "Bus bandwidth; NULL if no bytes are known.", "algorithm_gbps": "Message bytes over transfer time; NULL if no bytes are known.", "message_bytes": "Message bytes of one rank, over all executions.", "transfer_ms": "Transfer time over all executions.", "executions": "Executions covered; all ranks of one count once.", "async_executions": "Asynchronous ones among them."}', 'First version.', CAST(NULL AS VARCHAR)), ('comm_to_compute', 1, 'stable', 'ratio', 'lower_is_better', 'run', 'run_id, phase', 'comm_to_compute', 'Time with a collective under way over time with compute, all devices together.', 'Communication is the union of the windows on a device, hidden parts and waiting included. Compute is the union of its ops that are neither communication nor copies. Devices without communication count with their compute.', 'communication_ratio', '1a6b0db711a27bfc8b0ca3bd98d76099f2ca89cc0ef8eab8786ff1808789fc56', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "comm_to_compute": "Communication time over compute time.", "min_ratio": "The lowest of a device that computes.", "max_ratio": "The highest of a device that computes.", "communication_ms": "Communication time of all devices.", "compute_ms": "Compute time of all devices.", "devices": "Devices that ran the phase."}', 'First version.', CAST(NULL AS VARCHAR)), ('communication_fraction', 1, 'stable', 'ratio', 'lower_is_better', 'run', 'run_id, phase', 'fraction', 'Share of a phase in which a device communicates and computes nothing: exposed communication over the time of the phase''s steps. The value is the mean over devices.', 'A step lasts from its start to the start of the next. The last step counts only in a phase that has no other (models.timed_spans). Each device counts the same, a device without communication with 0. The share of each device is computed to one part in 10^15.', 'communication_fraction', '0c51c019f0234b67dbe061f50c9490e1ee79708be9f61a1971ff398c23bebdcb', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "fraction": "Exposed communication over the time of the phase, mean over devices.", "bound": "lower or upper if the true value is at least or at most this one; NULL if the value is exact.", "min_fraction": "The lowest of a device.", "max_fraction": "The highest of a device.", "speedup_limit": "How many times faster the phase would be without any exposed communication, including the waiting in it, by Amdahl''s law: 1 / (1 - fraction); NULL if the phase has nothing else.", "devices": "Devices that ran the phase."}', 'First version.', CAST(NULL AS VARCHAR)), ('communication_time', 1, 'stable', 'ms', 'lower_is_better', 'run', 'run_id, phase, device_id', 'communication_time_ms', 'Time per step in which a collective is under way on a device, as the mean over the steps whose time is known. It is the union of the collectives'' windows, hidden parts included. Without any steps, the capture counts as one.', CAST(NULL AS VARCHAR), 'total_communication_time', 'bc8f31c138f4927497f8dd76ab378a28d6e192a4f2dbf0540f26385337edca55', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "device_id": "The device.", "communication_time_ms": "Time per step.", "total_ms": "Time over these steps.", "collectives": "Executions of collectives.", "steps": "Steps of the phase on the device that count; 1 if there are none."}', 'First version.', CAST(NULL AS VARCHAR)), ('copy_bandwidth', 1, 'stable', 'GB/s', 'higher_is_better', 'run', 'run_id, device_id, kind', 'copy_gbps', 'Bytes of asynchronous copies over their windows, in decimal GB. A window lasts from the start of the start half to the end of the done half on the same device.', 'A row divides the sum of its bytes by the sum of its time. Bytes are the profiler''s bytes_accessed of the start; for a TPU''s copy-start these are the bytes of the copied array, once. Each of several overlapping windows counts, and a window may outlast its transfer, so the value is a lower bound of what a copy alone reaches.', 'average_memory_bandwidth', '4e838de4dd0cbc50e8b33980d170f2813eccbf5c5679274c73690dee753e87bf', '{"run_id": "The run.", "device_id": "The device.", "kind": "copy for copy-start and copy-done, async for other asynchronous ops except collectives.", "copy_gbps": "Bytes over time.", "copies": "Number of copies of known size.", "bytes": "Bytes of all copies.", "window_ms": "Time of their windows together."}', 'First version.', CAST(NULL AS VARCHAR)), ('copy_overhead', 1, 'stable', 'ratio', 'lower_is_better', 'run', 'run_id, phase', 'overhead', 'Share of a phase in which a device copies and neither computes nor communicates. It is the part of the copies'' windows that no other op covers, over the time of the phase''s steps, all devices together.', 'The window of an asynchronous copy lasts from the start of its start half to the end of its done half. Each moment counts once, for the step in which the first window that covers it begins. The last step counts only in a phase that has no other (models.timed_spans).', 'memory_transfer_overhead', 'e57f5a61d7eac577925758213a2d86fa2953eebeb06752d9d7991fb3c05591cc', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "overhead": "Exposed copy time over the time of the phase.", "bound": "lower or upper if the true value is at least or at most this one; NULL if the value is exact.", "exposed_ms": "Exposed copy time of all devices.", "time_ms": "Time of the phase, of all devices together.", "devices": "Devices that ran the phase."}', 'First version.', CAST(NULL AS VARCHAR)), ('decode_cost_per_context_token', 1, 'experimental', 'us', 'lower_is_better', 'run', 'run_id, requests', 'us_per_token', 'How much longer a decode step takes for each token of context. Step times are fitted to the contexts of all requests, within stretches in which the same requests go on. A row needs six such steps with equally many requests.', 'The fit is by least squares. A step''s time is that from its start to the next start on the slowest device. Only steps whose batches decode alone count, of all data-parallel ranks together, in stretches of three or more, as in models.decode_contexts. The server states only the shortest context of a batch. In a stretch all contexts grow by one token a step, so the slope within stretches is right whatever the other contexts are. The interval holds 95 % of such slopes if the errors are normal, as in models.fitted_lines.', CAST(NULL AS VARCHAR), 'ce3fed16418d38922156ecf0f59dab32f193fa70e79f8956a034d279a565e791', '{"run_id": "The run.", "requests": "Requests of a step, of all data-parallel ranks.", "us_per_token": "Time of a step per token of context of all its requests together.", "low_us_per_token": "Lower end of its 95 % interval, as in models.fitted_lines.", "high_us_per_token": "Upper end.", "base_us": "Upper bound of the time of a step without context: all contexts are taken to be as long as the shortest.", "r2": "Share of the variance within the stretches that the line explains; NULL where all steps take the same time.", "least_context_tokens": "Smallest context of a step, at least.", "most_context_tokens": "Largest one, at least.", "contexts": "Number of different ones.", "stretches": "Stretches in which the same requests go on.", "steps": "Steps that it covers."}', 'First version.', CAST(NULL AS VARCHAR)), ('device_idle', 1, 'stable', 'ratio', 'lower_is_better', 'run', 'run_id, phase, device_id', 'idle_ratio', 'Share of a phase in which a device runs no op, waiting for the host included: 1 - busy / span.', 'Busy is the union of its leaf ops, including those between two steps. Span is the time of the phase''s steps, each from its start to the start of the next. The last step counts only in a phase that has no other (models.timed_spans). Idle time per step has columns by what ends it (models.idle_parts). Only gaps of more than a microsecond between two ops of a step count there. The rest is time between steps. If ops reach beyond these steps by more than the idle time, the share is 0. Ops outside of a run''s steps are left out.', CAST(NULL AS VARCHAR), 'f12b643221bb5346aebe3de93b5756fc87ef08a2c689a802677a7c2f2f4ddbf7', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "device_id": "The device.", "idle_ratio": "Share of the span without an op.", "bound": "lower or upper if the true value is at least or at most this one; NULL if the value is exact.", "busy_ms": "Union of the leaf ops.", "span_ms": "Time of the steps that count.", "before_launch_ms": "Idle time per step before the first op of another execution of a program; NULL without steps, as in all parts.", "before_tick_ms": "Before a collective on axis pp, or the start or done of one, with which a tick of a pipeline hands over.", "before_collective_ms": "Before any other collective.", "before_other_ms": "Before other ops.", "between_steps_ms": "Before a step''s first op and after its last.", "steps": "Steps that count of the phase on the device; NULL without steps."}', 'First version.', CAST(NULL AS VARCHAR)), ('e2e_latency', 1, 'stable', 'ms', 'lower_is_better', 'run', 'run_id, clock', 'e2e_latency_ms', 'Time from the start of prefill to the end of the last decode step: on the hosts'' clock by their markers, on the devices'' from the first prefill op to the end of the last decode op. A run without both phases has no row. Neither has a run with several prefills, or with steps that prefill and decode, because its requests cannot be told apart.', 'Decode steps before the prefill belong to other requests and do not count.', CAST(NULL AS VARCHAR), '3803b30b99dd051f00411335da5638185bd4103e804cda61a40ca66607d076d9', '{"run_id": "The run.", "clock": "host or device.", "e2e_latency_ms": "Time from start to end.", "decode_steps": "Decode steps in it."}', 'First version.', CAST(NULL AS VARCHAR)), ('exposed_communication', 1, 'stable', 'ms', 'lower_is_better', 'run', 'run_id, phase, device_id, kind, axis', 'exposed_ms', 'Time per step in which a device computes nothing because its op line runs a collective, or the start or done of one.', 'Each moment counts once, for the collective whose op runs, so the rows of a device add up to its whole exposed time. The value is the mean over the steps whose time is known, as in models.step_parts. Without any steps, the capture counts as one.', CAST(NULL AS VARCHAR), 'f1559c44eba4bef9335aba3dec81306568c9fd27a7ab615219553338e94ff961', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "device_id": "The device.", "kind": "Kind of collective.", "axis": "Mesh axes of its groups.", "exposed_ms": "Exposed time per step.", "total_ms": "Exposed time over these steps.", "steps": "Steps of the phase on the device that count; 1 if there are none."}', 'First version.', CAST(NULL AS VARCHAR)), ('faster_chips', 1, 'stable', '%', 'none', 'run', 'run_id, phase, resource, factor', 'saved_percent', 'How much shorter a phase could be at most if memory or matrix units were faster by a factor: 100 (T - T'') / T. T is the time of the phase''s steps on all devices. T'' shortens each op as much as the faster resource shortens its bound under the roofline.', 'The bound of an op is the time that the slowest of memory and matrix units would need for it at its peak (models.instruction_bounds). With a faster memory the matrix units may become the bound, so four times the memory may save no more than twice. The whole op shortens in proportion. at_peak_percent counts the bound alone and keeps the rest of the op, so the true value lies between the two if the costs are right. Ops without a known bound, such as Pallas kernels, and collectives keep their time. Each moment counts once; steps are those of models.timed_spans.', CAST(NULL AS VARCHAR), 'd84790355ed3ce26ab1ed5484039138ec911a3db2e1dd3d744b000bda34cc7ac', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "resource": "hbm or compute.", "factor": "How many times faster it is - 2, 4 or infinite.", "saved_percent": "Share of the time saved at most.", "bound": "lower or upper if the true value is at least or at most this one; NULL if the value is exact.", "at_peak_percent": "Share saved if the rest of each op stays.", "saved_ms": "Time saved on all devices.", "time_ms": "Time of the phase, of all devices together.", "known_share": "Share of the time in ops whose bound is known."}', 'First version.', CAST(NULL AS VARCHAR)), ('faster_links', 1, 'stable', '%', 'none', 'run', 'run_id, phase, link, axis, basis, factor', 'saved_percent', 'How much shorter a phase would be if the links of one class were faster by a factor: 100 (T - T'') / T. T is the time of the phase''s steps on all devices. Collectives without a fit of latency and bandwidth have rows of their own, whose values are upper bounds.', 'With a fit, a collective shortens by (1 - 1 / factor) x bytes / bandwidth, but by no more than its transfer time without the latency, and by no more than its exposed time. Latency and waiting for late ranks stay. The fit of a kind and axis comes from models.transfer_fit; one beyond the peak of the links does not count, and a negative latency counts as 0. Without a fit, a collective shortens by (1 - 1 / factor) of its exposed time, which includes latency and waiting. So do collectives with ranks outside the capture or unknown bytes, and all of a predicted run, whose links were assumed. Each moment counts once, for the collective whose op runs, so the values of several links and axes add up. Steps are those of models.timed_spans.', 'scale_up_bw_utility', '1cac6b810f4e228f74e84eb53239d87fef19527b823eec3d318b37db56ec2d4c', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "link": "Class of the links that are faster - ici, die, dcn, nvlink or fabric; NULL where not known.", "axis": "Mesh axes of its groups.", "basis": "What the value rests on - fit, or exposed where no fit tells the part of the bandwidth.", "factor": "How many times faster the links are - 2, 4 or infinite.", "saved_percent": "Share of the time saved.", "bound": "lower or upper if the true value is at least or at most this one; NULL if the value is exact.", "saved_ms": "Time saved on all devices.", "time_ms": "Time of the phase, of all devices together.", "executions": "Executions of collectives over the links, on all devices."}', 'First version.', CAST(NULL AS VARCHAR)), ('gemm_efficiency', 1, 'experimental', 'ratio', 'higher_is_better', 'run', 'run_id, phase, shape, operand_dtype, flops', 'efficiency', 'Operations of matrix products over what the devices could do at peak in the products'' self time, by shape and type.', 'A product is known by its result''s shape and the operations of one execution: 2 m n k for m x k times k x n. A fusion''s operations and time include what is fused with it. Operations are those that the profiler states, without work that the compiler added, or those given at ingest. Products whose operations are not known, and kernels whose operands no HLO tells, have no row; unsized_share says how much time such ops take.', CAST(NULL AS VARCHAR), '62ea1136db36ea5c9735f939cf5b27c38580ed89e58ad65668c4d1fe58853fd5', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "shape": "Shape of the result.", "operand_dtype": "Element type that it multiplies.", "flops": "Operations of one execution.", "efficiency": "Share of the peak.", "tflops_per_s": "Operations over self time, 10^12 per second.", "self_ms": "Self time over all devices.", "mean_us": "Mean self time of an execution.", "executions": "Number of executions, summed over devices.", "peak_flops_per_s": "Peak of a device for the type; the smallest where devices differ.", "unsized_share": "Share of the phase''s compute time in ops whose operations are not known."}', 'First version.', CAST(NULL AS VARCHAR)), ('hbm_bandwidth', 1, 'stable', 'GB/s', 'higher_is_better', 'run', 'run_id, phase, device_id', 'hbm_gbps', 'Bytes in HBM that a device''s leaf ops access, over its busy time, in decimal GB. memory_access_breakdown splits the bytes by memory. Other memories have columns of their own.', 'An op between two steps, such as a sampling program, belongs to the step before it. If a run has steps, ops outside of them are left out. The bytes are the compiler''s estimate, or those given at ingest. An asynchronous op counts with its start, in the memory that it reads. So a copy from the host counts in other_gbps, and what its done writes to HBM counts in copied_gbps. XProf''s bandwidth is the sum of hbm_gbps and copied_gbps. Bytes that are given or not split count as HBM''s; unsplit_bytes counts them. Ops without known bytes count with their time only, so the value is a lower bound if unsized_share is above 0.', CAST(NULL AS VARCHAR), 'ac50d77c46a428771597b016dd2e506765b7aae67eb31d559c7ec349b0991154', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "device_id": "The device.", "hbm_gbps": "Bytes of HBM over busy time.", "utilization": "Share of the device''s peak; NULL if the peak is unknown.", "bytes": "Bytes of HBM in the phase.", "on_chip_gbps": "Bytes of memories on the chip, over busy time; NULL if not split.", "other_gbps": "Bytes of other memories, such as the host''s, over busy time; NULL if not split.", "copied_gbps": "Bytes that asynchronous ops write to HBM at their done, over busy time; NULL if not split.", "unsplit_bytes": "The part of bytes that is not known to be HBM''s.", "busy_ms": "Union of the leaf ops.", "unsized_ops": "Ops whose bytes are unknown; they are not counted here.", "unsized_share": "Share of these ops in the self time of all."}', 'First version.', CAST(NULL AS VARCHAR)), ('hockney', 1, 'stable', 'us', 'none', 'run', 'run_id, kind, axis', 'latency_us', 'Hockney''s model of a transfer, time = latency + bytes / bandwidth, fitted by least squares to the collectives of a kind and axis. There is a row only if the data support the fit.', 'The time of an execution is the shortest over its ranks; the bytes are those that a device sends under the row''s algorithm. A fit needs at least three sizes that ran twice or more, time that grows with size, and an r2 of 0.9 or more. Latency and bandwidth have 95 % intervals. Differences are taken in whole units of their range, one part in 2^20 or finer. A window of an asynchronous collective may outlast its transfer, which raises the latency. Source: Hockney, The communication challenge for MPP, Parallel Computing 20 (1994); models.transfer_fit names the source of the intervals.', 'hockney', 'b69a4898cd9f38e75b7e8298e541876671b6ef79e3bf0fc7c342a46aeb5567c7', '{"run_id": "The run.", "kind": "Kind of collective.", "axis": "Mesh axes of its groups.", "link": "Class of the links that carry them: die, ici, nvlink or fabric, or mixed; NULL where not known.", "latency_us": "Time of an empty message; may be below 0 if the model does not fit.", "latency_low_us": "Lower end of its 95 % interval.", "latency_high_us": "Upper end.", "bandwidth_gbps": "Bytes per time beyond the latency, decimal.", "bandwidth_low_gbps": "Lower end of its 95 % interval.", "bandwidth_high_gbps": "Upper end; NULL if the interval of the time per byte reaches 0.", "r2": "Share of the variance that the line explains.", "points": "Executions; all ranks of one count once.", "async_points": "Asynchronous ones among them.", "sizes": "Distinct sizes.", "is_above_peak": "Whether the bandwidth is above the peak of a device''s links in one direction, so that the fit cannot be right; NULL if unknown."}', 'First version.', CAST(NULL AS VARCHAR)), ('host_gap', 1, 'stable', 'ratio', 'lower_is_better', 'run', 'run_id, phase', 'gap_ratio', 'Share of the steps'' time in which no device of the run executes an op. All devices then wait for the host.', 'A gap of up to a microsecond between two ops of a device does not count, because rounded times and the issuing of ops cause such gaps. A step of the run lasts from the first device''s start to the first start of the next step. The last step counts only in a phase that has no other; it then lasts to its latest end. Devices of several hosts are compared on the run''s clock, so the result is only as exact as the alignment of the clocks. A capture without steps has no row.', CAST(NULL AS VARCHAR), 'ac714f169e4792b5a2b1b3b2abc940e4598c23d54a7b7f104f9d64607637f360', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "gap_ratio": "Share of the time without an op on any device.", "bound": "lower or upper if the true value is at least or at most this one; NULL if the value is exact.", "gap_ms": "Time without an op on any device, over all steps.", "time_ms": "Time of the steps.", "threshold_us": "Shorter times between two ops of a device are no pause.", "steps": "Steps of the phase that count."}', 'First version.', CAST(NULL AS VARCHAR)), ('ici_utilization', 1, 'stable', 'ratio', 'higher_is_better', 'run', 'run_id, phase, kind, axis', 'utilization', 'Share of the peak inter-chip bandwidth that collectives reach. It is the bytes that a device sends over the transfer time, which is the shortest time over the ranks, and over the device''s peak of all links in one direction.', 'A row divides the sum of its bytes by the sum of its time. Ranks that send nothing, such as the target of a pair, are left out. Executions with ranks outside the capture count only in a row that has no others, with the bytes that the algorithm of their kind sends. Their transfer took at most the shortest time at hand, so the share is a lower bound. The window of an asynchronous collective may outlast its transfer, so its share is a lower bound too.', CAST(NULL AS VARCHAR), '6a1a341c1789a1a34da80607a469fd1510363b7dfbae235f005a59cd5c97fbc5', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "kind": "Kind of collective.", "axis": "Mesh axes of its groups.", "utilization": "Share of the peak.", "bound": "lower or upper if the true value is at least or at most this one; NULL if the value is exact.", "sent_gbps": "Bytes sent over transfer time.", "peak_gbps": "Peak of a device; the smallest if devices differ.", "link": "Class of the links: ici, or die for devices of one chip, with the peak of the die; mixed for both.", "wire_bytes": "Bytes that all devices send.", "executions": "Executions covered, counted on every device that sends.", "async_executions": "Asynchronous ones among them."}', 'First version.', CAST(NULL AS VARCHAR)), ('kv_cache_traffic', 1, 'experimental', 'bytes', 'none', 'run', 'run_id, device_id', 'read_bytes_per_step', 'Bytes of the cache of keys and values that the attention kernels of a device read and write in a decode step, on average. A token''s bytes in the cache are read for each token of context, and written for each token that is computed. The server states only the shortest context of a batch, so the bytes read are a lower bound.', 'The shape of the kernel''s operand tells what a token takes. The mean is over the decode steps that another step follows. Only vLLM on TPU has a row, whose kernels show the cache. Under data parallelism it is not known which device holds which requests, so such a run has none.', CAST(NULL AS VARCHAR), 'd37e808a4932304fc9d719eeb4023df0c66ba90fcfe9836452240e5c4a581d97', '{"run_id": "The run.", "device_id": "The device.", "read_bytes_per_step": "Bytes that are read.", "bound": "lower if steps have several requests, of which only the shortest context is known.", "written_bytes_per_step": "Bytes that are written.", "token_bytes": "Bytes of a token in the caches of all layers of the device.", "kernels_per_step": "Executions of the kernels, one for each layer.", "kernel_ms_per_step": "Their self time.", "read_gbps": "Bytes that are read over it, decimal.", "steps": "Decode steps that it covers."}', 'First version.', CAST(NULL AS VARCHAR)), ('launch_overhead', 1, 'stable', 'us', 'lower_is_better', 'run', 'run_id, phase, device_id', 'gap_us', 'Time on a device from the end of one execution of a program to the start of the next, as the mean over the executions of a phase. The dispatch time lasts from the start of the host''s dispatch to the start of the execution on the device. The undispatched part of a gap comes before the host begins to dispatch.', 'The phase is that of the next execution. An execution that starts before earlier ones have ended has a gap of 0. The dispatch time includes queueing behind earlier executions. The rest of a gap, after dispatch began, is the device''s own. Percentiles are by nearest rank. A phase has a row only if one of its executions follows another or has a known dispatch.', CAST(NULL AS VARCHAR), 'e0483ac864740d393baf1c4fd84b3e67da6a7ae7040af81642dd149e57795e60', '{"run_id": "The run.", "phase": "Phase of the execution that starts; NULL in a step without one, outside of all steps ''outside''.", "device_id": "The device.", "gap_us": "Mean time between executions; NULL if none follows another.", "p50_us": "Median.", "p90_us": "90th percentile.", "p99_us": "99th percentile.", "launches": "Executions that follow another.", "dispatch_us": "Mean time from the start of dispatch on the host to the start on the device; NULL if unknown.", "dispatch_p50_us": "Median.", "dispatch_p90_us": "90th percentile.", "dispatch_p99_us": "99th percentile.", "dispatches": "Executions whose dispatch is known.", "late_us": "Mean part of the gap before the dispatch began, over the launches whose dispatch is known; NULL where there are none."}', 'First version.', CAST(NULL AS VARCHAR)), ('layer_coverage', 1, 'experimental', 'ratio', 'none', 'run', 'run_id, phase', 'coverage', 'Share of the devices'' op time whose place in the model is known: its transformer layer, or a part outside of the layers. Below 0.9 no comparison splits a step by layer.', 'Self time of the leaf ops, all devices together. The embedding, the output head and the transfers of a pipeline are outside of the layers.', CAST(NULL AS VARCHAR), '1054381a5a1ff15cfb8a6f5943d35e758d031f57aecb083921ec6829ac58ca7f', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "coverage": "Share in a known place.", "marked": "Share in layers that names state.", "in_loops": "Share in layers that a loop runs.", "inferred": "Share in layers that are inferred from repetition.", "outside": "Share in parts outside of the layers.", "self_ms": "Self time over all devices."}', 'First version.', CAST(NULL AS VARCHAR)), ('layer_time', 1, 'stable', 'us', 'lower_is_better', 'run', 'run_id, phase, layer, part', 'self_us', 'Self time of the leaf ops by transformer layer and part of the model, per step, as the mean over the devices that ran any of it. Compute and communication have columns of their own. The rest is copies.', 'In a pipeline, the layer is that of the device''s stage. Ops without a known layer or part have rows of their own, so that a phase adds up. Without steps, the capture counts as one.', CAST(NULL AS VARCHAR), '8598a2211b01c88d93a415d8b7ccf0b8374dfc9ef6c2c4ebe0ecb406223d72e5', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "layer": "Transformer layer; NULL if unknown.", "part": "Part of the model; NULL if unknown.", "self_us": "Self time per device and step.", "compute_us": "Self time of compute ops.", "communication_us": "Self time of communication, including waiting.", "devices": "Devices that ran any such op."}', 'First version.', CAST(NULL AS VARCHAR)), ('load_imbalance', 1, 'stable', 'ratio', 'lower_is_better', 'run', 'run_id, phase', 'busy_imbalance', 'Busy time of the busiest device over the mean of the devices that ran the phase; 1 is perfect balance. There is no row for one device.', 'Waiting in a collective is busy time, so the column for compute shows the imbalance for which ranks wait. A device that computes nothing in the whole capture, such as one that is only copied to, does not count.', 'load_imbalance_ratio', 'fa05adfd5090e9450fcf33d9f7df737f28edfa61a4105734efc0881042360fea', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "busy_imbalance": "Largest busy time over the mean.", "compute_imbalance": "Largest compute time over the mean; NULL without compute.", "moe_imbalance": "The same for self time of the experts without communication; NULL without experts.", "devices": "Devices that ran the phase and compute."}', 'First version.', CAST(NULL AS VARCHAR)), ('memory_in_use', 1, 'experimental', 'bytes', 'lower_is_better', 'run', 'run_id, host, allocator', 'peak_bytes', 'Most memory of an allocator in use at once during the capture: allocated bytes and bytes reserved for the stacks of programs. The profiler states it at each allocation and release, so an allocator without either in the capture has no row.', CAST(NULL AS VARCHAR), CAST(NULL AS VARCHAR), '82160293d3339915c2f4b1848f22f85e83b72098ddcaddeb441c8add4f162c8f', '{"run_id": "The run.", "host": "The host.", "allocator": "Name of the allocator; else the device''s number on the host; NULL where neither is stated.", "peak_bytes": "Most in use at once, allocated and reserved.", "peak_allocated_bytes": "Allocated at that moment.", "peak_reserved_bytes": "Reserved at that moment.", "capacity_bytes": "In use or free at that moment; NULL where not known.", "lifetime_peak_bytes": "Most allocated since the process began; NULL where not known.", "allocations": "Allocations in the capture.", "releases": "Releases in the capture."}', 'First version.', CAST(NULL AS VARCHAR)), ('mfu', 1, 'stable', 'ratio', 'higher_is_better', 'run', 'run_id, phase', 'mfu', 'Model FLOPs utilization: the operations that the model needs for a phase''s tokens, over what all devices of the run could do at peak in the time of its steps. A server states the tokens, or else they follow from batch size and lengths. Devices outside the capture count too.', 'A step lasts from its start to the next one''s on the slowest device. The last step counts only in a phase that has no other. A token takes 2 x active parameters, without the embedding tables and the output head, and for attention 4 x layers x width x context (models.model_shapes). The output head runs on one token of each sequence, in prefill too. If a server states the tokens of all these steps, they count as models.step_tokens has them. Else prefill has batch x input tokens, the i-th with a context of i. A decode step has batch tokens with a context of input + step, where prefill is step 0; a predicted step has the context that it was predicted for. Steps of several prefills then have no value. The peak is that of the type in which most of the time of the phase''s matrix products multiplies; if the capture does not show it, that of the run''s dtype. Source: Chowdhery et al., PaLM (2022), appendix B, with a third of its training cost for the forward pass, and causal contexts.', 'mfu', '2ecc455b2036bd00abd81587b8b8f28bab72f064fb8e801c995e47413e0a8811', '{"run_id": "The run.", "phase": "prefill, decode, or mixed.", "mfu": "Utilization; NULL if the model''s shape or the lengths are not known.", "bound": "upper if the time is that of a last step, without the wait after it; else lower if a server states the contexts, of which only the shortest is known.", "hlo_mfu": "Utilization by the model_flops of leaf ops that neither communicate nor copy, as the profiler states them or as given at ingest, over the time of the same steps. Ops between two steps count for the one before. NULL if none is known.", "model_flops": "Operations that the model needs; NULL if unknown.", "hlo_model_flops": "Operations by the model_flops of the ops in these steps, of the devices in the capture.", "unsized_share": "Share of the ops'' self time for which operations are not known, so that hlo_mfu lacks them; NULL without ops.", "time_ms": "Time of the steps.", "tokens": "Tokens of the steps; NULL if unknown.", "steps": "Steps of the phase that count.", "devices": "Devices of the run, including missing ones.", "peak_type": "Type of matrix product whose peak counts: bf16, int8 or fp8.", "peak_flops_per_s": "Peak of a device; the smallest if devices differ."}', 'First version.', CAST(NULL AS VARCHAR)), ('microbenchmarks', 1, 'experimental', 'us', 'lower_is_better', 'run', 'run_id, program, class, axis, what', 'value_us', 'Times that the programs of the experiment calibrate show, of links, products, memories, attention kernels and the host. The median counts, and the 10th and 90th percentile are its spread.', 'models.microbenchmark_times says what an execution shows. A collective is named as it ran: the compiler may have chosen another kind than the program asks for. Percentiles are by nearest rank.', CAST(NULL AS VARCHAR), '91b933be70d7566a3023d69d7780c3e3d722d545ad626bd5c520cce895118ccc', '{"run_id": "The run.", "program": "Name of the program.", "kind": "collective, product, fusion, copy, attention or host.", "class": "Of collectives the kind that ran, of products the type, of fusions and copies the memory; the attention kernel.", "axis": "Mesh axes of its groups.", "what": "Bytes of a collective''s message or of a copy, rows x inner length x columns of a product, shape of a fusion, sequences x heads x tokens x width of attention (over pages, heads of keys), or arguments of a program.", "chip": "Kind of the device.", "value_us": "Median time.", "low_us": "10th percentile.", "high_us": "90th percentile.", "n": "Number of times, over all devices or groups.", "tflops_per_s": "Of a product, and of flash attention: its rate at the median.", "gbps": "Of a copy or fusion bytes read and written, of pages keys and values; at the median.", "hbm_share": "Of copies, fusions and pages in HBM: the share of the peak that gbps is; NULL where the peak is not known.", "peak_share": "Of products in bf16 and of flash attention: the share of the peak that tflops_per_s is; NULL where it is not known."}', 'First version.', CAST(NULL AS VARCHAR)), ('moe_fraction', 1, 'stable', 'ratio', 'none', 'run', 'run_id, phase', 'fraction', 'Share of the devices'' busy time that the mixture of experts takes. A run without a known op of the experts has no row.', 'Its time is the self time of the ops of router and experts, and of the collectives that dispatch and combine tokens: those of the experts'' part and all on axis ep. It is divided by the union of all leaf ops, all devices together.', 'moe_fraction', 'be75b348aee5cda00c6352917200f65da31d6a457f3e0afcf2dfc66bf4e41057', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "fraction": "Share of the busy time.", "compute_fraction": "Share of ops that do not communicate.", "communication_fraction": "Share of dispatch and combine, including waiting.", "moe_ms": "Self time over all devices.", "devices": "Devices that ran the phase."}', 'First version.', CAST(NULL AS VARCHAR)), ('op_time_share', 1, 'stable', 'ratio', 'none', 'run', 'run_id, phase, category', 'share', 'Self time of the leaf ops of a category over that of all leaf ops of the phase, all devices together.', 'XProf''s hlo_stats sums a different time, which each event states on the device clock. The shares of both agree within 0.1 % on a capture of four v6e chips.', 'dominant_kernel_concentration', '1b494ae2c23430420d663aa4a7b3a48c9de761a64ab52d6060379454e1899a33', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "category": "The profiler''s category of the instruction; NULL if it names none.", "share": "Share of the self time.", "self_ms": "Self time over all devices.", "ops": "Number of ops."}', 'First version.', CAST(NULL AS VARCHAR)), ('overlap_ratio', 1, 'stable', 'ratio', 'higher_is_better', 'run', 'run_id, phase, kind, axis', 'overlap_ratio', 'Share of the collectives'' windows in which the device runs ops that do not communicate, summed over executions and devices. Idle time inside a window hides nothing, and a synchronous collective has no hidden part. Windows that overlap count one by one.', CAST(NULL AS VARCHAR), 'compute_comm_overlap', '4b2995be12fb9278c7b3a77534fb89077558ae5d09caa8044bfb296019550a9e', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "kind": "Kind of collective.", "axis": "Mesh axes of its groups.", "overlap_ratio": "Hidden share.", "window_ms": "Time of the windows together.", "exposed_ms": "Exposed time in them.", "idle_ms": "Time in them in which the device runs nothing.", "window_source": "How the windows were found - op, start/done pair, async line, start only - or mixed.", "executions": "Number of executions, summed over devices.", "async_executions": "Asynchronous ones among them."}', 'First version.', CAST(NULL AS VARCHAR)), ('padding_waste', 1, 'experimental', 'ratio', 'lower_is_better', 'run', 'run_id, kind', 'padding_share', 'Share of the computed tokens that are padding, by kind of batch: (computed - scheduled) / computed tokens, summed over the batches of the kind, as the server states them. Batches without a step of their own count too.', CAST(NULL AS VARCHAR), CAST(NULL AS VARCHAR), '8f01a0b862b53c92cd9d020d365dcc4ef6bc70b26619931f8f978dabd99f5c5e', '{"run_id": "The run.", "kind": "prefill_only, prefill_heavy, balanced, decode_heavy, decode_only or ambiguous; NULL where the server does not say.", "padding_share": "Share that is padding.", "padding_tokens": "Tokens of padding.", "scheduled_tokens": "Tokens that were scheduled.", "computed_tokens": "Tokens that were computed, padding included.", "batches": "Batches that it covers."}', 'First version.', CAST(NULL AS VARCHAR)), ('pipeline_bubble', 1, 'stable', 'ratio', 'lower_is_better', 'run', 'run_id, phase', 'bubble_ratio', 'Share of a pipeline''s ticks in which a stage does no work of its own: gaps without an op, and exposed time of collectives on axis pp, in which it waits for its neighbours. ideal_ratio is the share for P stages and M microbatches, (P - 1) / (M + P - 1).', 'It is divided by the time from the first op of a step to its last end, all stages together. If every stage computes in every tick, as one program for all devices does, the bubble is filled with work that is thrown away. That counts as compute here, and the ratio can be below the ideal. Source: Huang et al., GPipe (2019).', CAST(NULL AS VARCHAR), '9350b7cc6f7921f4b408c2d4a5a0fbd57182b5b6b24f3329d9a2096a8606927f', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "bubble_ratio": "Share of the time without work, all devices together.", "max_ratio": "The highest of a device.", "ideal_ratio": "The ideal share; NULL if the number of microbatches is not known.", "waiting_ratio": "Share of the time in exposed collectives on axis pp.", "stages": "Size of the pipeline-parallel axis.", "microbatches": "Microbatches per step.", "devices": "Devices that ran the phase."}', 'First version.', CAST(NULL AS VARCHAR)), ('prediction_basis', 1, 'experimental', 'ratio', 'none', 'run', 'run_id, phase, basis', 'share', 'Share of the predicted device time that rests on each basis: the compiler''s cycles, the links, a model or a measured median of a kernel, bytes through HBM, gathers, or waits for another queue. The more of it is modelled, the wider is the range.', 'It counts what the core does, one op after the other. A transfer beside it counts through the wait in its done.', CAST(NULL AS VARCHAR), '8f509b74c474bffbcd0b65c33427401c0155c85725ea54b310ef0db353df994a', '{"run_id": "The run.", "phase": "prefill or decode.", "basis": "What the time rests on, as of ops.", "share": "Share of the step''s device time.", "time_ms": "Time of a step''s ops with this basis.", "low_ms": "The same with each op at the low end of its range.", "high_ms": "The same with each op at the high end.", "extrapolated_share": "Part of the time for layers that were not compiled.", "ops": "Ops of a step."}', 'First version.', CAST(NULL AS VARCHAR)), ('prediction_error', 1, 'experimental', 'ratio', 'none', 'warehouse', 'run_id, predicted_run_id, phase, op_kind, variant', 'p50', 'Measured over predicted time of the ops that a recorded run and a predicted one have in common, by kind of op. Ops are the same if opcode, types, shapes and memory spaces are. Above 1 the predicted time is too short.', 'A row counts instructions of the recorded run. Its time is the mean over its executions, and in a collective the mean of the shortest ranks. The predicted time is the mean over all equal ops of the predicted run. Halves of asynchronous ops are left out. Only runs on chips with the same peak are compared, and none on chips that do not exist (what-if). The metric compares runs, so it is not stored with a run.', CAST(NULL AS VARCHAR), '641832f6d1a926ddb0ba9b9583fe39a55c4d795e5b2cbd9988829bc2ec5c5312', '{"run_id": "The recorded run.", "predicted_run_id": "The predicted run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "op_kind": "Kind of op, as in models.signed_times.", "variant": "What tells it from others of its kind, as there.", "n": "Instructions of the recorded run that have a counterpart.", "p50": "Measured over predicted time of half of them, at most.", "p10": "The same of one in ten.", "p90": "The same of nine in ten.", "time_ratio": "All measured over all predicted time.", "measured_ms": "Measured time of all executions; ranks of a collective count once.", "predicted_ms": "What was predicted for as many executions.", "matched_share": "Share of the kind''s self time that has a counterpart.", "is_same_program": "Whether all instructions of this kind are in the predicted run under the same names, as in the same program."}', 'First version.', CAST(NULL AS VARCHAR)), ('prediction_range', 1, 'experimental', 'ratio', 'lower_is_better', 'run', 'run_id, phase', 'spread', 'Range of the predicted device time of a step over that time. Ops with the same basis are taken to err together, and different bases independently.', 'So the ranges of a basis''s ops add up, and the ranges of different bases add as the root of the sum of their squares. The range leaves out another compiler, other ops of a server, and its host. host_ms is what the user said of the host.', CAST(NULL AS VARCHAR), 'fe9ebd52a78615696854c87eab83cdc3c273f04709825ac7ae2e19833d3ed582', '{"run_id": "The run.", "phase": "prefill or decode.", "spread": "Range over time.", "time_ms": "Predicted device time of the step.", "low_ms": "Low end of its range.", "high_ms": "High end.", "least_ms": "The time with all ops at the low ends of their ranges.", "most_ms": "The time with all ops at the high ends.", "extrapolated_share": "Part of the time for layers that were not compiled.", "host_ms": "Time that the host was said to add to the step, which is not in the range."}', 'First version.', CAST(NULL AS VARCHAR)), ('prefill_throughput', 1, 'experimental', 'tokens/s', 'higher_is_better', 'run', 'run_id', 'prompt_tokens_per_s', 'Prompt tokens per second of device time in prefill. The time of a prefill step is from the first op of its devices to the end of the last, so the host''s pause before the next step does not count.', 'Where the server says what it scheduled, these are the tokens of the batches whose steps only prefill, over all data-parallel ranks; else those of batch size and input length, if the run has a single prefill. prefill_tokens_per_s of throughput is the same on the clock of the hosts, if they have markers.', CAST(NULL AS VARCHAR), 'f7956aa5b43386dacd9727d3dcbafd3c9297e4f9bd8dd838f84c5aec338591d6', '{"run_id": "The run.", "prompt_tokens_per_s": "Prompt tokens per second.", "prompt_tokens_per_s_per_chip": "The same per chip of the run, chips outside the capture included; NULL where their number is not known.", "tokens": "Prompt tokens of these steps.", "time_ms": "Time of these steps.", "steps": "Prefill steps that count.", "token_source": "batches (what the server scheduled) or lengths (batch size and input length)."}', 'First version.', CAST(NULL AS VARCHAR)), ('roofline', 1, 'stable', 'FLOP/s', 'none', 'run', 'run_id, instruction_id', 'flops_per_s', 'Each HLO instruction''s place under the roofline: floating-point operations and memory traffic of its executions over their self time, all devices together. The bound is the resource that would take longest at its peak. attained is that time over the time that the instruction took.', 'Flops and bytes are those that the profiler states of instructions or of single ops, or that were given at ingest. The resources are the matrix units at the rate of the type that they multiply, the memory, and for a collective the links with the bytes that it sends. Links have the peak of their class, which is that of the die between two devices of one chip. An instruction that computes has no bound if flops or bytes of an execution are unknown, as of a Pallas kernel. Halves of asynchronous ops have no row, because they state the bytes of a transfer that goes on between them. XProf''s roofline has the same operations, bytes and peaks. It has no bound by links, and its time comes from another clock of the device, so single ops differ by some percent. Source: Williams et al., Roofline (2009).', CAST(NULL AS VARCHAR), '19eb49e874f62773b4f56955aba802de0518fa8911d5f96bf6fa925daf74997d', '{"run_id": "The run.", "instruction_id": "The HLO instruction.", "name": "Its name.", "category": "The profiler''s category of the instruction; NULL if it names none.", "flops_per_s": "Operations per second of a device, in the executions whose operations are known; NULL without any.", "flops": "Operations of an execution; their mean.", "bytes_accessed": "Memory traffic of an execution; their mean.", "wire_bytes": "Bytes that all executions send; NULL if unknown or not a collective.", "intensity": "Operations per byte of memory traffic.", "self_us": "Mean self time of an execution.", "bound": "compute, memory, or the class of the links; NULL if a peak, a cost, or what is sent is unknown.", "attained": "Share of the bound''s peak; NULL if the bound is.", "executions": "Number of executions, summed over devices.", "unsized_share": "Share of the self time of the run''s compute ops whose flops or bytes are unknown; NULL without such ops."}', 'First version.', CAST(NULL AS VARCHAR)), ('scaling_efficiency', 1, 'stable', 'ratio', 'higher_is_better', 'warehouse', 'run_id, baseline_run_id', 'efficiency', 'Output tokens per second and chip, relative to the run of the same workload on the fewest chips. At 1, throughput grows with the chips. If several runs have the fewest chips, such as repeats, there is a row for each of them.', 'Two runs have the same workload if all that shapes the work is equal, or unknown for both: model, layers, sizes, parameters, precision, capacity factor, batch size, lengths, framework, kind of device, whether it is predicted, and what the prediction changed about the real slice. Model, batch size and lengths must be known. The metric compares runs, so it is not stored with a run. Each query evaluates it from the stored values of throughput.', CAST(NULL AS VARCHAR), '1c0154546df397aaddcbf00c2bec6d4b3fc7a0cf439ef139aaf907d61b9d064a', '{"run_id": "The run.", "baseline_run_id": "The run on the fewest chips with which it is compared; the run itself if it is one of those.", "efficiency": "Throughput per chip over that of the baseline.", "speedup": "Throughput over that of the baseline.", "chips": "Chips of the run.", "baseline_chips": "Chips of the baseline."}', 'First version.', CAST(NULL AS VARCHAR)), ('step_time', 1, 'stable', 'ms', 'lower_is_better', 'run', 'run_id, phase, step', 'step_time_ms', 'Time of each step from its start to the next step''s start, on the slowest device. The last step has no successor, so it has no value.', 'last_step_ms holds the last step''s own duration, which leaves out the gap to a next step; do not compare it with times of steps. A capture of a single step has no value. If the devices of a run have no steps, its hosts'' markers give the time. In a capture without marks, every execution of a program is a step, and phase is NULL.', 'avg_step_time', 'abda452ec1a784f0069bb5effe3b6f20479c3d427f1614b781d10052275ddab5', '{"run_id": "The run.", "phase": "prefill, decode, or mixed for a batch that does both; NULL for a step of none.", "step": "Step; NULL outside of steps.", "step_time_ms": "Time of the step on the slowest device; NULL if no step follows.", "min_ms": "Time of the step on the fastest device.", "last_step_ms": "Duration on the slowest of the devices on which no step follows; NULL if one follows on all.", "devices": "Devices that ran it; hosts if the clock is theirs.", "clock": "host or device.", "source": "Where the steps come from."}', 'First version.', CAST(NULL AS VARCHAR)), ('straggler_ranking', 1, 'experimental', 'ms', 'none', 'run', 'run_id, phase, axis, device_id', 'caused_wait_ms', 'Which device the others wait for: how often each is the last to start a collective, and how long all ranks together wait in these executions, as sync_wait has it. Where several start last together, none of them is the last.', 'Executions of which ranks are missing from the capture count only in phases and axes that have no others. The values then tell about the ranks at hand alone.', CAST(NULL AS VARCHAR), 'c28dee08adfeb80731c28f789f0898f6679de4c7aa3fb1694c2ed57e430372ad', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "axis": "Mesh axes of its groups.", "device_id": "The device.", "caused_wait_ms": "Time that the ranks wait where it is last, all of them together.", "place": "Place among the devices of the phase and axis, 1 for the one that causes most waiting; NULL if it is never last.", "last_share": "Share of its executions in which it alone is last.", "last_executions": "Number of these.", "executions": "Executions that it takes part in.", "lead_ms": "Where it is last, the time by which it alone was later than all others.", "lateness_us": "Start after the first rank''s, mean over all its executions.", "is_partial": "Ranks are missing from the capture, which may have been later."}', 'First version.', CAST(NULL AS VARCHAR)), ('sync_wait', 1, 'stable', 'ms', 'lower_is_better', 'run', 'run_id, phase, device_id', 'wait_ms', 'Time that a device waits in collectives for slower ranks. In each collective this is its own time less the shortest over the ranks. It is at most the exposed time, and in an asynchronous collective at most that of the done.', 'Each exposed moment counts once, for the collective whose op runs. So a device that computes beside the collective does not wait, and one that is in two collectives at once waits once. If ranks are outside the capture, the shortest may be among them, so the value is a lower bound. Executions with only one rank in the capture are then left out.', 'straggler_metrics', '9387c532ed71f6149b1bc993484ea17480b7f5b4d85c4f598d7b1a8638909499', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "device_id": "The device.", "wait_ms": "Time waited.", "bound": "lower or upper if the true value is at least or at most this one; NULL if the value is exact.", "wait_ms_per_step": "Time waited per step; without steps the capture counts as one.", "collectives": "Executions covered."}', 'First version.', CAST(NULL AS VARCHAR)), ('throughput', 1, 'stable', 'tokens/s', 'higher_is_better', 'run', 'run_id', 'output_tokens_per_s', 'Output tokens per second from the start of prefill to the end of the last step that decodes. The tokens are those that a server states of its batches. Else each sequence of the batch has one token from prefill and one from each decode step.', 'The time is on the hosts'' clock if they have markers that time steps, and else on the devices''. Marks under which a host only launches steps do not time them (models.launched_runs). Steps before the first prefill belong to other requests and do not count. If no server states the tokens, a run with several prefills has no row, because its requests cannot be told apart. A server does not state which prompts end in a step; models.served_output says how their first tokens are counted.', 'throughput', 'f156e5cc0076e6d978b75f760568e7b576131cac899b63e16458fd2fc9b1c567', '{"run_id": "The run.", "output_tokens_per_s": "Output tokens of all sequences per second.", "output_tokens_per_s_per_chip": "Output tokens per second and chip of the run, including chips outside the capture.", "prefill_tokens_per_s": "Prompt tokens per second of prefill; NULL if their number is unknown, or if there are several prefills.", "decode_tokens_per_s": "Tokens of the steps that decode, per second from the first to the last of them.", "output_tokens": "Output tokens of all sequences.", "token_source": "batches (what the server scheduled) or lengths (batch size and decode steps).", "chips": "Chips of the run; NULL if its devices are unknown.", "clock": "host or device."}', 'First version.', CAST(NULL AS VARCHAR)), ('token_cost', 1, 'experimental', 'chip-hours', 'lower_is_better', 'run', 'run_id, phase', 'chip_hours_per_million_tokens', 'Chip hours for a million tokens, which are prompt tokens in prefill and generated ones in decode. All chips of the run count for the time of the phase''s steps. The price of a chip hour gives the cost in USD.', 'It is the cost while the chips are busy with such steps, one after the other. Pauses between requests, the host''s time beyond the steps, and batches that are not full come on top. The price is the list price in hardware.json or what --chip-price said at ingest; it is unknown if a device''s is, or if the chips differ in price.', CAST(NULL AS VARCHAR), '9cb77f52e83cfef301b073581d7d302efa0cdede426b5d0321412051eabe0e6a', '{"run_id": "The run.", "phase": "prefill, decode, or mixed.", "chip_hours_per_million_tokens": "Hours of a chip for a million tokens.", "usd_per_million_tokens": "Their price; NULL if unknown.", "chip_price_usd_per_h": "Price of a chip for an hour; NULL if unknown.", "price_source": "Where it comes from, with its date.", "chips": "Chips of the run, with those outside the capture.", "tokens": "Tokens of the steps that count.", "time_ms": "Time of these steps."}', 'First version.', CAST(NULL AS VARCHAR)), ('top_kernels', 1, 'experimental', 'ratio', 'none', 'run', 'run_id, phase, kernel, category', 'share', 'Self time of the devices'' leaf ops by kernel. A kernel is all ops of one category whose names differ in their numbers alone, such as fusion.7 and fusion.12. The shares of a phase add up to 1.', CAST(NULL AS VARCHAR), CAST(NULL AS VARCHAR), 'a74210740544b5fcf596f7b84b7ff3132887cf35aa384e555d932c657a4f32f8', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "kernel": "Name of the ops without the numbers at its end.", "category": "The profiler''s category of the instruction; NULL if it names none.", "share": "Share of the phase''s self time.", "place": "Place in the phase, 1 for the kernel that takes most time.", "self_ms": "Self time over all devices.", "mean_us": "Mean self time of an op.", "ops": "Number of ops.", "instructions": "Number of instructions.", "op_class": "What the device does in them - communication, copy or compute.", "first_layer": "First transformer layer that it works on; NULL where not known.", "last_layer": "Last one.", "op_name": "Name path of the instruction that takes most of the time; NULL where not known.", "source": "Source line of that instruction; NULL where not known."}', 'First version.', CAST(NULL AS VARCHAR)), ('tpot', 1, 'stable', 'ms', 'lower_is_better', 'run', 'run_id, clock', 'tpot_ms', 'Mean time per output token: from the start of a step that decodes to the start of the next one. A step counts with the time of its slowest device or host. Steps that prefill and decode count too.', 'A decode step counts if another one follows, because it ends where that one starts. A run without two decode steps in a row has no row. Percentiles are by nearest rank.', 'tpot', '15317e28d46a945dbb8f9c6d5548fbf9cf1ab03eb543f69653f709135bfa548f', '{"run_id": "The run.", "clock": "host or device.", "tpot_ms": "Mean time of a step that decodes.", "steps": "Steps that count.", "p50_ms": "Median.", "p90_ms": "90th percentile.", "p99_ms": "99th percentile.", "source": "Where the steps come from."}', 'First version.', CAST(NULL AS VARCHAR)), ('traffic_by_link', 1, 'experimental', 'bytes', 'none', 'run', 'run_id, phase, link', 'sent_bytes', 'Bytes that devices send to each other over a phase, by the class of the links that they take. Chips of a TPU slice reach each other by ICI across hosts too; the program says what goes between slices. Bytes within slices are counted as in traffic_matrix.', CAST(NULL AS VARCHAR), CAST(NULL AS VARCHAR), '23af54ba882e4e92047c113b7a91163cf0e04773b6e9d6006ff45a29438c29d6', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "link": "die (devices of one chip), ici, nvlink, fabric (Infinity Fabric), or dcn (between slices, or hosts without ICI); NULL for virtual devices, and where not known.", "sent_bytes": "Bytes sent.", "share": "Share of the bytes of the phase.", "executions": "Executions, once for each pair of devices; of dcn, for each sender."}', 'First version.', CAST(NULL AS VARCHAR)), ('traffic_by_parallelism', 1, 'stable', 'bytes', 'none', 'run', 'run_id, phase, axis', 'message_bytes_per_device', 'Traffic of each kind of parallelism, and how certain the kind is. The traffic is the message bytes per device of all collectives along one axis of the mesh, or along several at once, as a mean over the devices that take part.', 'Source, confidence and evidence of the axis come from main.mesh_axes. If a collective runs along several inferred axes, confidence and evidence are those of the least certain axis, because the combination cannot be more certain.', CAST(NULL AS VARCHAR), 'fe4b7e8740f055a42a70e25d689aa050df3f171e16b91ce2ed3082604eece5f8', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "axis": "Mesh axes of the groups, such as tp or dp+tp; ''unknown'' if no mesh fits, ''none'' for groups of one device.", "message_bytes_per_device": "Message bytes, mean over devices, as in traffic_volume.", "share": "Share of the message bytes of the phase.", "wire_bytes_per_device": "Bytes sent, mean over devices; NULL unless known for all executions.", "executions": "Number of executions, summed over devices.", "devices": "Devices that take part.", "axis_source": "mesh, or inferred; NULL for ''unknown'' and ''none''.", "confidence": "Probability that the name of the axis is right; 1 for a mesh, NULL for ''unknown'' and ''none''.", "evidence": "Reasons for an inferred name; NULL for a mesh, ''unknown'' and ''none''."}', 'First version.', CAST(NULL AS VARCHAR)), ('traffic_interval', 1, 'stable', 'us', 'none', 'run', 'run_id, phase, axis_from, axis_to, crosses_step', 'interval_us', 'Time on a device from the end of one collective to the start of the next, of the same axis or of another, as the mean over all devices. Gaps within a step and gaps from one step to the next have rows of their own.', 'Both collectives are in the same phase. The previous collective is the one that ends last of those that started earlier. If it still runs, the interval is 0. Percentiles are by nearest rank.', 'traffic_window', '6b847a00af9d4e650e2d1704b6e90bad6ab4d8f88b0fe2c908f12f00f7614fd7', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "axis_from": "Mesh axes of the collective that ends.", "axis_to": "Mesh axes of the collective that starts.", "crosses_step": "The collective that starts is of another step than the one that ends.", "interval_us": "Mean interval.", "p50_us": "Median.", "p90_us": "90th percentile.", "p99_us": "99th percentile.", "intervals": "Number of intervals on all devices.", "overlapping": "Intervals of 0, in which the previous collective still ran."}', 'First version.', CAST(NULL AS VARCHAR)), ('traffic_interval_histogram', 1, 'stable', 'count', 'none', 'run', 'run_id, phase, axis_from, axis_to, crosses_step, from_us', 'intervals', 'Number of intervals of traffic_interval in each decade from 1 us to 10 ms, and below and above, over all devices. A bin without intervals has no row.', CAST(NULL AS VARCHAR), CAST(NULL AS VARCHAR), 'b8b837596aded53f328017c78f3ad61188b11544483699264a4dd80f1bdd4431', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "axis_from": "Mesh axes of the collective that ends.", "axis_to": "Mesh axes of the collective that starts.", "crosses_step": "The collective that starts is of another step than the one that ends.", "from_us": "Lower end of the bin, inclusive.", "until_us": "Upper end of the bin, exclusive; NULL for the last.", "intervals": "Number of intervals."}', 'First version.', CAST(NULL AS VARCHAR)), ('traffic_matrix', 1, 'stable', 'bytes', 'none', 'run', 'run_id, phase, axis, kind, source_device_id, target_device_id', 'sent_bytes', 'Bytes that one device sends to another over a phase by kind of collective, under the algorithm of main.traffic. Each execution on the sender counts.', 'In a ring a device sends to the next rank of the group, in an all-to-all an equal share to every other rank, in a collective-permute from source to target. Collectives whose groups are partly outside the capture are left out, because their devices are not known.', CAST(NULL AS VARCHAR), '762c84867d19349faea2e59c7c20e1ee3af36a0c9425b68b8b9bab0264dd1350', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "axis": "Mesh axes of its groups.", "kind": "Kind of collective.", "source_device_id": "The sender.", "target_device_id": "The receiver.", "sent_bytes": "Bytes sent.", "executions": "Executions of collectives with traffic between the two."}', 'First version.', CAST(NULL AS VARCHAR)), ('traffic_rate', 1, 'experimental', 'bytes/ms', 'none', 'run', 'run_id, phase, kind, axis', 'message_bytes_per_ms', 'Message bytes of collectives on a device per millisecond of the phase, over the devices that take part.', 'The time of a phase is the time of its steps, including the gaps between them. The last step counts only in a phase that has no other (models.timed_spans). Message and sent bytes are counted as in traffic_volume.', CAST(NULL AS VARCHAR), '1c286943dbfe8bb9d789bd1a9396fe4e81ad341e3a605ca5ae0a9ee14777ef4b', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "kind": "Kind of collective.", "axis": "Mesh axes of its groups.", "message_bytes_per_ms": "Message bytes of all devices over their time.", "bound": "lower or upper if the true value is at least or at most this one; NULL if the value is exact.", "wire_bytes_per_ms": "Bytes sent, in the same way; NULL where not known of all executions.", "message_bytes": "Message bytes of all devices.", "time_ms": "Time of the phase, of all devices together.", "devices": "Devices that take part."}', 'First version.', CAST(NULL AS VARCHAR)), ('traffic_volume', 1, 'stable', 'bytes', 'lower_is_better', 'run', 'run_id, phase, kind, axis', 'message_bytes_per_device', 'Message bytes of a phase per device, as the mean over the devices that take part: operand bytes, or the full buffer for an all-gather. Bytes on the wire are those that a device sends under the algorithm of main.traffic.', 'In a ring of n devices the bytes on the wire are 2 (n-1)/n of an all-reduce''s message and (n-1)/n of an all-gather''s or reduce-scatter''s. They are (n-1)/n of an all-to-all''s message, and the whole message for the source of a collective-permute.', 'collective_vol', '4e2e711b3355e8b5c4b2ed7f0f0adfa73d739a216011fb7b93de2b7fe3904048', '{"run_id": "The run.", "phase": "Phase; NULL in a step without one and in a capture without steps, outside before the first step and after the last.", "kind": "Kind of collective.", "axis": "Mesh axes of its groups.", "message_bytes_per_device": "Message bytes, mean over devices.", "message_bytes_per_step": "Message bytes per step, mean over devices.", "wire_bytes_per_device": "Bytes sent, mean over devices; NULL if unknown, as in groups that are partly captured.", "message_bytes": "Message bytes of all devices.", "devices": "Devices that take part.", "run_devices": "Devices that take part in any collective of the run. The message bytes of all rows over this number are the run''s bytes per device.", "unsized_executions": "Executions whose message size is unknown; they are not counted here."}', 'First version.', CAST(NULL AS VARCHAR)), ('ttft', 1, 'stable', 'ms', 'lower_is_better', 'run', 'run_id, clock', 'ttft_ms', 'Time to first token. On the host''s clock, it is the time from the start of the prefill marker to its end, when the token is on the host. On the devices'' clock, it is the time from the first prefill op to the end of the last one on any device.', 'Ops before the next step belong to the prefill, so sampling by a separate program counts. A prompt may have several prefills, such as its chunks: all before the first step that decodes count. A mixed step, which prefills for one request and decodes for another, is no prefill here.', 'ttft', '29fd8b66d701883b7a121c51c9fceefd229bb3ce54a5351be69f1b3a29dfdadb', '{"run_id": "The run.", "clock": "host or device.", "ttft_ms": "Time to first token.", "prefill_steps": "Prefill steps in that time.", "source": "Where the steps come from."}', 'First version.', CAST(NULL AS VARCHAR)), ('unit_utilization', 1, 'experimental', 'ratio', 'higher_is_better', 'run', 'run_id, host, device_id, hardware_unit', 'utilization', 'Utilization of hardware units by the performance counters of the chips, as the profiler states it. Unlike mfu it counts padding and recomputation as work.', 'The profiler states it of the whole capture on the planes of hosts, such as matrix_unit_utilization_percent, or samples it on lines of devices, such as ''MXU: % util''. Samples come at irregular times and each counts once. Captures do not hold the utilization of single ops.', CAST(NULL AS VARCHAR), '654031488c4c0277e27f6d1df18e0a92e8adc671048bb65cc16d8864532a06bc', '{"run_id": "The run.", "host": "The host.", "device_id": "The device that is sampled; NULL for what a plane states.", "hardware_unit": "Unit as the profiler names it, such as matrix_unit or MXU.", "utilization": "Share of what the unit can do: the mean of the samples, or the largest where several planes state it.", "highest": "The largest of these.", "source": "plane (of the whole capture) or samples.", "readings": "Planes or samples."}', 'First version.', CAST(NULL AS VARCHAR))) AS catalog ("metric", "version", "status", "unit", "polarity", "scope", "grain", "value", "description", "notes", "ccl_bench", "fingerprint", "columns", "changed", "deprecated");

CREATE VIEW metrics.all_values AS SELECT run_id, metric, version, dimensions, value, unit FROM main.metric_values WHERE true UNION ALL SELECT run_id, 'scaling_efficiency', 1, '{' || '"baseline_run_id": ' || coalesce(to_json("baseline_run_id")::VARCHAR, 'null') || '}', CAST("efficiency" AS DOUBLE), 'ratio' FROM metrics.scaling_efficiency_v1 WHERE "efficiency" IS NOT NULL AND true;

CREATE VIEW metrics.missing AS 
WITH wanted (metric, version, is_stored, otherwise) AS (VALUES ('collective_attribution', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('collective_count', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('collective_frequency', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('collective_skew', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('collective_transfer', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('comm_to_compute', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('communication_fraction', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('communication_time', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('copy_bandwidth', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('copy_overhead', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('decode_cost_per_context_token', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('device_idle', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('e2e_latency', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('exposed_communication', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('faster_chips', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('faster_links', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('gemm_efficiency', 1, false, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('hbm_bandwidth', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('hockney', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('host_gap', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('ici_utilization', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('kv_cache_traffic', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('launch_overhead', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('layer_coverage', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('layer_time', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('load_imbalance', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('memory_in_use', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('mfu', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('microbenchmarks', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('moe_fraction', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('op_time_share', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('overlap_ratio', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('padding_waste', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('pipeline_bubble', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('prediction_basis', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('prediction_error', 1, false, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('prediction_range', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('prefill_throughput', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('roofline', 1, false, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('scaling_efficiency', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('step_time', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('straggler_ranking', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('sync_wait', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('throughput', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('token_cost', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('top_kernels', 1, false, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('tpot', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('traffic_by_link', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('traffic_by_parallelism', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('traffic_interval', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('traffic_interval_histogram', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('traffic_matrix', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('traffic_rate', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('traffic_volume', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('ttft', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.'), ('unit_utilization', 1, true, 'what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`.')),
needs (metric, version, place, precondition, sentence) AS (VALUES ('collective_attribution', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('collective_attribution', 1, 1, 'recorded', 'the run is predicted, with equal devices, assumed links and no host; record a capture while the program runs.'), ('collective_attribution', 1, 2, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('collective_attribution', 1, 3, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('collective_attribution', 1, 4, 'any_collective', 'the devices ran no collective.'), ('collective_attribution', 1, 5, 'attributed_collectives', 'every collective has ranks outside the capture; ingest the captures of all hosts together.'), ('collective_attribution', 1, 6, 'lasting_collectives', 'every collective ends when it starts.'), ('collective_count', 1, 0, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('collective_count', 1, 1, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('collective_count', 1, 2, 'any_collective', 'the devices ran no collective.'), ('collective_frequency', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('collective_frequency', 1, 1, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('collective_frequency', 1, 2, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('collective_frequency', 1, 3, 'any_collective', 'the devices ran no collective.'), ('collective_frequency', 1, 4, 'collectives_in_steps', 'no collective runs in a step whose time is known; profile whole steps that communicate, or name their program with `tw ingest --step PROGRAM`.'), ('collective_skew', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('collective_skew', 1, 1, 'recorded', 'the run is predicted, with equal devices, assumed links and no host; record a capture while the program runs.'), ('collective_skew', 1, 2, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('collective_skew', 1, 3, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('collective_skew', 1, 4, 'any_collective', 'the devices ran no collective.'), ('collective_skew', 1, 5, 'collective_in_slice', 'every collective runs between slices, and the program does not say which devices take part.'), ('collective_skew', 1, 6, 'several_ranks', 'no collective has two ranks in the capture.'), ('collective_transfer', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('collective_transfer', 1, 1, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('collective_transfer', 1, 2, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('collective_transfer', 1, 3, 'any_collective', 'the devices ran no collective.'), ('collective_transfer', 1, 4, 'separate_collectives', 'every collective is part of an op that computes, so its own time is not known.'), ('comm_to_compute', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('comm_to_compute', 1, 1, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('comm_to_compute', 1, 2, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('comm_to_compute', 1, 3, 'any_collective', 'the devices ran no collective.'), ('comm_to_compute', 1, 4, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('comm_to_compute', 1, 5, 'computed_phase', 'the devices compute nothing.'), ('communication_fraction', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('communication_fraction', 1, 1, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('communication_fraction', 1, 2, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('communication_fraction', 1, 3, 'any_collective', 'the devices ran no collective.'), ('communication_time', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('communication_time', 1, 1, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('communication_time', 1, 2, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('communication_time', 1, 3, 'any_collective', 'the devices ran no collective.'), ('copy_bandwidth', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('copy_bandwidth', 1, 1, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('copy_bandwidth', 1, 2, 'any_copy', 'the devices ran no copy.'), ('copy_bandwidth', 1, 3, 'async_copies', 'the devices ran no asynchronous copy.'), ('copy_bandwidth', 1, 4, 'paired_copies', 'no asynchronous copy has both its start and its done in the capture.'), ('copy_bandwidth', 1, 5, 'async_copy_bytes', 'the profiler does not say how many bytes asynchronous copies move.'), ('copy_overhead', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('copy_overhead', 1, 1, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('copy_overhead', 1, 2, 'any_copy', 'the devices ran no copy.'), ('decode_cost_per_context_token', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('decode_cost_per_context_token', 1, 1, 'any_step', 'no step is known; mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`.'), ('decode_cost_per_context_token', 1, 2, 'known_phases', 'no step is known as prefill or decode; mark the steps with these names, or name the decode program with `tw ingest --step PROGRAM`.'), ('decode_cost_per_context_token', 1, 3, 'decode', 'no step is a decode; record for longer, while tokens are generated.'), ('decode_cost_per_context_token', 1, 4, 'decode_batches', 'no file of a server tells how long the contexts of decode steps are; put the batch files of vLLM on TPU beside the capture.'), ('decode_cost_per_context_token', 1, 5, 'varied_contexts', 'there are no six decode steps in which equally many requests go on from step to step; record more steps.'), ('device_idle', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('device_idle', 1, 1, 'recorded', 'the run is predicted, with equal devices, assumed links and no host; record a capture while the program runs.'), ('device_idle', 1, 2, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('e2e_latency', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('e2e_latency', 1, 1, 'any_step', 'no step is known; mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`.'), ('e2e_latency', 1, 2, 'known_phases', 'no step is known as prefill or decode; mark the steps with these names, or name the decode program with `tw ingest --step PROGRAM`.'), ('e2e_latency', 1, 3, 'prefill', 'no step is a prefill; record from the start of a request.'), ('e2e_latency', 1, 4, 'decode', 'no step is a decode; record for longer, while tokens are generated.'), ('e2e_latency', 1, 5, 'decode_after_prefill', 'no decode step follows the prefill; record a request until its last token.'), ('e2e_latency', 1, 6, 'one_prefill', 'the capture has several prefills or mixed steps, whose requests cannot be told apart; record one request, or one batch.'), ('exposed_communication', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('exposed_communication', 1, 1, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('exposed_communication', 1, 2, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('exposed_communication', 1, 3, 'any_collective', 'the devices ran no collective.'), ('faster_chips', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('faster_chips', 1, 1, 'accelerators', 'the devices are virtual CPU devices, which have no peak rate.'), ('faster_chips', 1, 2, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('faster_chips', 1, 3, 'op_costs', 'the cost of no op is known; on TPUs the compiler states it, except of custom calls; tell the costs of kernels with `tw ingest --costs FILE`.'), ('faster_chips', 1, 4, 'bounded_ops', 'no op has both a known cost and a device with known peaks; name the chip with `tw ingest --device`, and tell the costs of kernels with `tw ingest --costs FILE`.'), ('faster_links', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('faster_links', 1, 1, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('faster_links', 1, 2, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('faster_links', 1, 3, 'any_collective', 'the devices ran no collective.'), ('faster_links', 1, 4, 'collectives_in_steps', 'no collective runs in a step whose time is known; profile whole steps that communicate, or name their program with `tw ingest --step PROGRAM`.'), ('gemm_efficiency', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('gemm_efficiency', 1, 1, 'accelerators', 'the devices are virtual CPU devices, which have no peak rate.'), ('gemm_efficiency', 1, 2, 'matrix_peak', 'the devices'' peak is unknown; name the chip with `tw ingest --device`, or in the card.'), ('gemm_efficiency', 1, 3, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('gemm_efficiency', 1, 4, 'product_costs', 'no matrix product has known operand types and operations; tell the operations of kernels with `tw ingest --costs FILE`.'), ('hbm_bandwidth', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('hbm_bandwidth', 1, 1, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('hbm_bandwidth', 1, 2, 'memory_traffic', 'the memory traffic of no op is known; on TPUs the compiler states it, except of custom calls; tell the bytes of kernels with `tw ingest --costs FILE`.'), ('hockney', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('hockney', 1, 1, 'recorded', 'the run is predicted, with equal devices, assumed links and no host; record a capture while the program runs.'), ('hockney', 1, 2, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('hockney', 1, 3, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('hockney', 1, 4, 'any_collective', 'the devices ran no collective.'), ('hockney', 1, 5, 'collective_in_slice', 'every collective runs between slices, and the program does not say which devices take part.'), ('hockney', 1, 6, 'whole_collectives', 'every collective has ranks outside the capture; ingest the captures of all hosts together.'), ('hockney', 1, 7, 'separate_collectives', 'every collective is part of an op that computes, so its own time is not known.'), ('hockney', 1, 8, 'message_bytes', 'no collective has a known message size; record with the HLO of the programs.'), ('hockney', 1, 9, 'transfer_bytes', 'no collective is known to move bytes between devices.'), ('hockney', 1, 10, 'several_sizes', 'no kind of collective moves messages of three sizes, each at least twice; record prefill and decode, or batches of several sizes.'), ('hockney', 1, 11, 'fitted_transfers', 'the time of collectives does not grow with their size along a line (r2 is below 0.9).'), ('host_gap', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('host_gap', 1, 1, 'recorded', 'the run is predicted, with equal devices, assumed links and no host; record a capture while the program runs.'), ('host_gap', 1, 2, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('host_gap', 1, 3, 'device_steps', 'no step of a device is known; mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`.'), ('ici_utilization', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('ici_utilization', 1, 1, 'inter_chip_links', 'the capture is of a GPU, which has no inter-chip links.'), ('ici_utilization', 1, 2, 'accelerators', 'the devices are virtual CPU devices, which have no peak rate.'), ('ici_utilization', 1, 3, 'link_peak', 'the devices'' peak is unknown; name the chip with `tw ingest --device`, or in the card.'), ('ici_utilization', 1, 4, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('ici_utilization', 1, 5, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('ici_utilization', 1, 6, 'any_collective', 'the devices ran no collective.'), ('ici_utilization', 1, 7, 'separate_collectives', 'every collective is part of an op that computes, so its own time is not known.'), ('ici_utilization', 1, 8, 'collective_in_slice', 'every collective runs between slices, and the program does not say which devices take part.'), ('ici_utilization', 1, 9, 'message_bytes', 'no collective has a known message size; record with the HLO of the programs.'), ('ici_utilization', 1, 10, 'sent_bytes', 'no collective has known sent bytes.'), ('kv_cache_traffic', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('kv_cache_traffic', 1, 1, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('kv_cache_traffic', 1, 2, 'known_caches', 'no attention kernel shows the shape of its cache of keys and values, as those of vLLM on TPU do.'), ('kv_cache_traffic', 1, 3, 'any_step', 'no step is known; mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`.'), ('kv_cache_traffic', 1, 4, 'known_phases', 'no step is known as prefill or decode; mark the steps with these names, or name the decode program with `tw ingest --step PROGRAM`.'), ('kv_cache_traffic', 1, 5, 'decode', 'no step is a decode; record for longer, while tokens are generated.'), ('kv_cache_traffic', 1, 6, 'decode_batches', 'no file of a server tells how long the contexts of decode steps are; put the batch files of vLLM on TPU beside the capture.'), ('kv_cache_traffic', 1, 7, 'single_rank', 'the server has several data-parallel ranks, and captures do not tell which device is of which.'), ('launch_overhead', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('launch_overhead', 1, 1, 'recorded', 'the run is predicted, with equal devices, assumed links and no host; record a capture while the program runs.'), ('launch_overhead', 1, 2, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('launch_overhead', 1, 3, 'repeated_launches', 'no device ran two programs one after the other; record more than one step.'), ('layer_coverage', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('layer_coverage', 1, 1, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('layer_coverage', 1, 2, 'layers', 'no op is known to belong to a layer or part of the model; name them in the model with `jax.named_scope`.'), ('layer_time', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('layer_time', 1, 1, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('layer_time', 1, 2, 'layers', 'no op is known to belong to a layer or part of the model; name them in the model with `jax.named_scope`.'), ('load_imbalance', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('load_imbalance', 1, 1, 'recorded', 'the run is predicted, with equal devices, assumed links and no host; record a capture while the program runs.'), ('load_imbalance', 1, 2, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('load_imbalance', 1, 3, 'several_devices', 'only one device is in the capture.'), ('load_imbalance', 1, 4, 'parallel_compute', 'no two devices compute in the same phase.'), ('memory_in_use', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('memory_in_use', 1, 1, 'allocations', 'the capture has no allocations of memory with the bytes in use.'), ('mfu', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('mfu', 1, 1, 'accelerators', 'the devices are virtual CPU devices, which have no peak rate.'), ('mfu', 1, 2, 'matrix_peak', 'the devices'' peak is unknown; name the chip with `tw ingest --device`, or in the card.'), ('mfu', 1, 3, 'any_step', 'no step is known; mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`.'), ('mfu', 1, 4, 'known_phases', 'no step is known as prefill or decode; mark the steps with these names, or name the decode program with `tw ingest --step PROGRAM`.'), ('mfu', 1, 5, 'model_shape', 'neither manifest nor card gives the model''s parameters and layers; put a card.yaml with them beside the capture.'), ('mfu', 1, 6, 'known_tokens', 'neither the manifest, the card nor a server''s file gives the batch size and the numbers of tokens; put a card.yaml with them beside the capture.'), ('microbenchmarks', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('microbenchmarks', 1, 1, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('microbenchmarks', 1, 2, 'microbenchmark_programs', 'the devices ran no microbenchmark; record the ready-made experiment calibrate.'), ('moe_fraction', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('moe_fraction', 1, 1, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('moe_fraction', 1, 2, 'layers', 'no op is known to belong to a layer or part of the model; name them in the model with `jax.named_scope`.'), ('moe_fraction', 1, 3, 'experts', 'no op is known to belong to a mixture of experts.'), ('op_time_share', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('op_time_share', 1, 1, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('overlap_ratio', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('overlap_ratio', 1, 1, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('overlap_ratio', 1, 2, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('overlap_ratio', 1, 3, 'any_collective', 'the devices ran no collective.'), ('overlap_ratio', 1, 4, 'lasting_collectives', 'every collective ends when it starts.'), ('padding_waste', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('padding_waste', 1, 1, 'padded_batches', 'no file of a server tells how many tokens its batches schedule and compute; put the batch files of vLLM on TPU beside the capture.'), ('pipeline_bubble', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('pipeline_bubble', 1, 1, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('pipeline_bubble', 1, 2, 'device_steps', 'no step of a device is known; mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`.'), ('pipeline_bubble', 1, 3, 'pipeline', 'nothing says that the run is a pipeline; if it is one, say so with `tw ingest --mesh pp=...`.'), ('pipeline_bubble', 1, 4, 'pipeline_transfers', 'no collective runs between the stages of the pipeline.'), ('prediction_basis', 1, 0, 'predicted', 'the run is not predicted; predict one with `tw plan`.'), ('prediction_basis', 1, 1, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('prediction_basis', 1, 2, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('prediction_basis', 1, 3, 'timed_ops', 'every op of the devices ends when it starts.'), ('prediction_error', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('prediction_error', 1, 1, 'recorded', 'the run is predicted, with equal devices, assumed links and no host; record a capture while the program runs.'), ('prediction_error', 1, 2, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('prediction_error', 1, 3, 'accelerators', 'the devices are virtual CPU devices, which have no peak rate.'), ('prediction_error', 1, 4, 'matrix_peak', 'the devices'' peak is unknown; name the chip with `tw ingest --device`, or in the card.'), ('prediction_range', 1, 0, 'predicted', 'the run is not predicted; predict one with `tw plan`.'), ('prediction_range', 1, 1, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('prediction_range', 1, 2, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('prediction_range', 1, 3, 'timed_ops', 'every op of the devices ends when it starts.'), ('prefill_throughput', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('prefill_throughput', 1, 1, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('prefill_throughput', 1, 2, 'any_step', 'no step is known; mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`.'), ('prefill_throughput', 1, 3, 'known_phases', 'no step is known as prefill or decode; mark the steps with these names, or name the decode program with `tw ingest --step PROGRAM`.'), ('prefill_throughput', 1, 4, 'prefill', 'no step is a prefill; record from the start of a request.'), ('prefill_throughput', 1, 5, 'prefill_ops', 'no device ran an op in a prefill step.'), ('prefill_throughput', 1, 6, 'prompt_tokens', 'the prompt tokens of prefill steps are not known; put the server''s batch files beside the capture, or record one prefill with batch size and lengths in a card.yaml.'), ('roofline', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('roofline', 1, 1, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('roofline', 1, 2, 'op_costs', 'the cost of no op is known; on TPUs the compiler states it, except of custom calls; tell the costs of kernels with `tw ingest --costs FILE`.'), ('scaling_efficiency', 1, 0, 'known_throughput', 'the run has no throughput; metrics.missing says why.'), ('scaling_efficiency', 1, 1, 'model_name', 'neither manifest nor card names the model; put a card.yaml that names it beside the capture.'), ('scaling_efficiency', 1, 2, 'lengths', 'neither manifest nor card gives the numbers of input and output tokens; put a card.yaml with them beside the capture.'), ('step_time', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('step_time', 1, 1, 'any_step', 'no step is known; mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`.'), ('step_time', 1, 2, 'followed_step', 'no step is followed by another, so how long a step takes is unknown; record at least two steps.'), ('straggler_ranking', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('straggler_ranking', 1, 1, 'recorded', 'the run is predicted, with equal devices, assumed links and no host; record a capture while the program runs.'), ('straggler_ranking', 1, 2, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('straggler_ranking', 1, 3, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('straggler_ranking', 1, 4, 'any_collective', 'the devices ran no collective.'), ('straggler_ranking', 1, 5, 'collective_in_slice', 'every collective runs between slices, and the program does not say which devices take part.'), ('straggler_ranking', 1, 6, 'several_ranks', 'no collective has two ranks in the capture.'), ('sync_wait', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('sync_wait', 1, 1, 'recorded', 'the run is predicted, with equal devices, assumed links and no host; record a capture while the program runs.'), ('sync_wait', 1, 2, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('sync_wait', 1, 3, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('sync_wait', 1, 4, 'any_collective', 'the devices ran no collective.'), ('sync_wait', 1, 5, 'collective_in_slice', 'every collective runs between slices, and the program does not say which devices take part.'), ('sync_wait', 1, 6, 'ranks_to_compare', 'only one rank of each collective is in the capture; ingest the captures of all hosts together.'), ('throughput', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('throughput', 1, 1, 'any_step', 'no step is known; mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`.'), ('throughput', 1, 2, 'known_phases', 'no step is known as prefill or decode; mark the steps with these names, or name the decode program with `tw ingest --step PROGRAM`.'), ('throughput', 1, 3, 'prefill', 'no step is a prefill; record from the start of a request.'), ('throughput', 1, 4, 'decode', 'no step is a decode; record for longer, while tokens are generated.'), ('throughput', 1, 5, 'decode_after_prefill', 'no decode step follows the prefill; record a request until its last token.'), ('throughput', 1, 6, 'told_requests', 'the capture has several prefills or mixed steps, whose requests cannot be told apart; record one request or one batch, or put the server''s batch files beside the capture.'), ('throughput', 1, 7, 'told_sequences', 'neither the manifest, the card nor a server''s file gives the batch size; put a card.yaml with it beside the capture.'), ('token_cost', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('token_cost', 1, 1, 'accelerators', 'the devices are virtual CPU devices, which have no peak rate.'), ('token_cost', 1, 2, 'any_step', 'no step is known; mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`.'), ('token_cost', 1, 3, 'known_phases', 'no step is known as prefill or decode; mark the steps with these names, or name the decode program with `tw ingest --step PROGRAM`.'), ('token_cost', 1, 4, 'known_tokens', 'neither the manifest, the card nor a server''s file gives the batch size and the numbers of tokens; put a card.yaml with them beside the capture.'), ('token_cost', 1, 5, 'timed_tokens', 'no phase has steps whose time and tokens are known; record one prefill, or put the server''s batch files beside the capture.'), ('top_kernels', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('top_kernels', 1, 1, 'device_ops', 'no device ran an op; profile the devices too, not only the host.'), ('top_kernels', 1, 2, 'timed_ops', 'every op of the devices ends when it starts.'), ('tpot', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('tpot', 1, 1, 'any_step', 'no step is known; mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`.'), ('tpot', 1, 2, 'known_phases', 'no step is known as prefill or decode; mark the steps with these names, or name the decode program with `tw ingest --step PROGRAM`.'), ('tpot', 1, 3, 'decode', 'no step is a decode; record for longer, while tokens are generated.'), ('tpot', 1, 4, 'followed_decode', 'no decode step is followed by another; record at least two decode steps.'), ('traffic_by_link', 1, 0, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('traffic_by_link', 1, 1, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('traffic_by_link', 1, 2, 'any_collective', 'the devices ran no collective.'), ('traffic_by_link', 1, 3, 'link_traffic', 'no collective has both known devices and known bytes; ingest the captures of all hosts together.'), ('traffic_by_parallelism', 1, 0, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('traffic_by_parallelism', 1, 1, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('traffic_by_parallelism', 1, 2, 'any_collective', 'the devices ran no collective.'), ('traffic_by_parallelism', 1, 3, 'message_bytes', 'no collective has a known message size; record with the HLO of the programs.'), ('traffic_interval', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('traffic_interval', 1, 1, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('traffic_interval', 1, 2, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('traffic_interval', 1, 3, 'any_collective', 'the devices ran no collective.'), ('traffic_interval', 1, 4, 'consecutive_collectives', 'no device ran two collectives in a phase.'), ('traffic_interval_histogram', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('traffic_interval_histogram', 1, 1, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('traffic_interval_histogram', 1, 2, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('traffic_interval_histogram', 1, 3, 'any_collective', 'the devices ran no collective.'), ('traffic_interval_histogram', 1, 4, 'consecutive_collectives', 'no device ran two collectives in a phase.'), ('traffic_matrix', 1, 0, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('traffic_matrix', 1, 1, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('traffic_matrix', 1, 2, 'any_collective', 'the devices ran no collective.'), ('traffic_matrix', 1, 3, 'collective_in_slice', 'every collective runs between slices, and the program does not say which devices take part.'), ('traffic_matrix', 1, 4, 'known_traffic', 'no collective has devices that are all known; ingest the captures of all hosts together.'), ('traffic_rate', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('traffic_rate', 1, 1, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('traffic_rate', 1, 2, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('traffic_rate', 1, 3, 'any_collective', 'the devices ran no collective.'), ('traffic_rate', 1, 4, 'collectives_in_steps', 'no collective runs in a step whose time is known; profile whole steps that communicate, or name their program with `tw ingest --step PROGRAM`.'), ('traffic_rate', 1, 5, 'message_bytes', 'no collective has a known message size; record with the HLO of the programs.'), ('traffic_volume', 1, 0, 'device_programs', 'no device ran an op; profile the devices too, not the host alone.'), ('traffic_volume', 1, 1, 'stated_collectives', 'the devices ran collectives only inside kernels that send data themselves, and nothing states these.'), ('traffic_volume', 1, 2, 'any_collective', 'the devices ran no collective.'), ('traffic_volume', 1, 3, 'message_bytes', 'no collective has a known message size; record with the HLO of the programs.'), ('ttft', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('ttft', 1, 1, 'any_step', 'no step is known; mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`.'), ('ttft', 1, 2, 'known_phases', 'no step is known as prefill or decode; mark the steps with these names, or name the decode program with `tw ingest --step PROGRAM`.'), ('ttft', 1, 3, 'prefill', 'no step is a prefill; record from the start of a request.'), ('unit_utilization', 1, 0, 'timed', 'the run is a compiled program, which no device has run, so it has no times; record a capture while the program runs.'), ('unit_utilization', 1, 1, 'unit_counters', 'the profiler states no utilization by counters of the hardware.')),
holding AS (SELECT run_id, 'accelerators' AS precondition FROM preconditions.accelerators UNION ALL SELECT run_id, 'allocations' AS precondition FROM preconditions.allocations UNION ALL SELECT run_id, 'any_collective' AS precondition FROM preconditions.any_collective UNION ALL SELECT run_id, 'any_copy' AS precondition FROM preconditions.any_copy UNION ALL SELECT run_id, 'any_step' AS precondition FROM preconditions.any_step UNION ALL SELECT run_id, 'async_copies' AS precondition FROM preconditions.async_copies UNION ALL SELECT run_id, 'async_copy_bytes' AS precondition FROM preconditions.async_copy_bytes UNION ALL SELECT run_id, 'attributed_collectives' AS precondition FROM preconditions.attributed_collectives UNION ALL SELECT run_id, 'bounded_ops' AS precondition FROM preconditions.bounded_ops UNION ALL SELECT run_id, 'collective_in_slice' AS precondition FROM preconditions.collective_in_slice UNION ALL SELECT run_id, 'collectives_in_steps' AS precondition FROM preconditions.collectives_in_steps UNION ALL SELECT run_id, 'computed_phase' AS precondition FROM preconditions.computed_phase UNION ALL SELECT run_id, 'consecutive_collectives' AS precondition FROM preconditions.consecutive_collectives UNION ALL SELECT run_id, 'decode' AS precondition FROM preconditions.decode UNION ALL SELECT run_id, 'decode_after_prefill' AS precondition FROM preconditions.decode_after_prefill UNION ALL SELECT run_id, 'decode_batches' AS precondition FROM preconditions.decode_batches UNION ALL SELECT run_id, 'device_ops' AS precondition FROM preconditions.device_ops UNION ALL SELECT run_id, 'device_programs' AS precondition FROM preconditions.device_programs UNION ALL SELECT run_id, 'device_steps' AS precondition FROM preconditions.device_steps UNION ALL SELECT run_id, 'experts' AS precondition FROM preconditions.experts UNION ALL SELECT run_id, 'fitted_transfers' AS precondition FROM preconditions.fitted_transfers UNION ALL SELECT run_id, 'followed_decode' AS precondition FROM preconditions.followed_decode UNION ALL SELECT run_id, 'followed_step' AS precondition FROM preconditions.followed_step UNION ALL SELECT run_id, 'inter_chip_links' AS precondition FROM preconditions.inter_chip_links UNION ALL SELECT run_id, 'known_caches' AS precondition FROM preconditions.known_caches UNION ALL SELECT run_id, 'known_phases' AS precondition FROM preconditions.known_phases UNION ALL SELECT run_id, 'known_throughput' AS precondition FROM preconditions.known_throughput UNION ALL SELECT run_id, 'known_tokens' AS precondition FROM preconditions.known_tokens UNION ALL SELECT run_id, 'known_traffic' AS precondition FROM preconditions.known_traffic UNION ALL SELECT run_id, 'lasting_collectives' AS precondition FROM preconditions.lasting_collectives UNION ALL SELECT run_id, 'layers' AS precondition FROM preconditions.layers UNION ALL SELECT run_id, 'lengths' AS precondition FROM preconditions.lengths UNION ALL SELECT run_id, 'link_peak' AS precondition FROM preconditions.link_peak UNION ALL SELECT run_id, 'link_traffic' AS precondition FROM preconditions.link_traffic UNION ALL SELECT run_id, 'matrix_peak' AS precondition FROM preconditions.matrix_peak UNION ALL SELECT run_id, 'memory_traffic' AS precondition FROM preconditions.memory_traffic UNION ALL SELECT run_id, 'message_bytes' AS precondition FROM preconditions.message_bytes UNION ALL SELECT run_id, 'microbenchmark_programs' AS precondition FROM preconditions.microbenchmark_programs UNION ALL SELECT run_id, 'model_name' AS precondition FROM preconditions.model_name UNION ALL SELECT run_id, 'model_shape' AS precondition FROM preconditions.model_shape UNION ALL SELECT run_id, 'one_prefill' AS precondition FROM preconditions.one_prefill UNION ALL SELECT run_id, 'op_costs' AS precondition FROM preconditions.op_costs UNION ALL SELECT run_id, 'padded_batches' AS precondition FROM preconditions.padded_batches UNION ALL SELECT run_id, 'paired_copies' AS precondition FROM preconditions.paired_copies UNION ALL SELECT run_id, 'parallel_compute' AS precondition FROM preconditions.parallel_compute UNION ALL SELECT run_id, 'pipeline' AS precondition FROM preconditions.pipeline UNION ALL SELECT run_id, 'pipeline_transfers' AS precondition FROM preconditions.pipeline_transfers UNION ALL SELECT run_id, 'predicted' AS precondition FROM preconditions.predicted UNION ALL SELECT run_id, 'prefill' AS precondition FROM preconditions.prefill UNION ALL SELECT run_id, 'prefill_ops' AS precondition FROM preconditions.prefill_ops UNION ALL SELECT run_id, 'product_costs' AS precondition FROM preconditions.product_costs UNION ALL SELECT run_id, 'prompt_tokens' AS precondition FROM preconditions.prompt_tokens UNION ALL SELECT run_id, 'ranks_to_compare' AS precondition FROM preconditions.ranks_to_compare UNION ALL SELECT run_id, 'recorded' AS precondition FROM preconditions.recorded UNION ALL SELECT run_id, 'repeated_launches' AS precondition FROM preconditions.repeated_launches UNION ALL SELECT run_id, 'sent_bytes' AS precondition FROM preconditions.sent_bytes UNION ALL SELECT run_id, 'separate_collectives' AS precondition FROM preconditions.separate_collectives UNION ALL SELECT run_id, 'several_devices' AS precondition FROM preconditions.several_devices UNION ALL SELECT run_id, 'several_ranks' AS precondition FROM preconditions.several_ranks UNION ALL SELECT run_id, 'several_sizes' AS precondition FROM preconditions.several_sizes UNION ALL SELECT run_id, 'single_rank' AS precondition FROM preconditions.single_rank UNION ALL SELECT run_id, 'stated_collectives' AS precondition FROM preconditions.stated_collectives UNION ALL SELECT run_id, 'timed' AS precondition FROM preconditions.timed UNION ALL SELECT run_id, 'timed_ops' AS precondition FROM preconditions.timed_ops UNION ALL SELECT run_id, 'timed_tokens' AS precondition FROM preconditions.timed_tokens UNION ALL SELECT run_id, 'told_requests' AS precondition FROM preconditions.told_requests UNION ALL SELECT run_id, 'told_sequences' AS precondition FROM preconditions.told_sequences UNION ALL SELECT run_id, 'transfer_bytes' AS precondition FROM preconditions.transfer_bytes UNION ALL SELECT run_id, 'unit_counters' AS precondition FROM preconditions.unit_counters UNION ALL SELECT run_id, 'varied_contexts' AS precondition FROM preconditions.varied_contexts UNION ALL SELECT run_id, 'whole_collectives' AS precondition FROM preconditions.whole_collectives),
met AS (SELECT run_id, precondition FROM holding GROUP BY run_id, precondition),
unmet AS (
  SELECT r.run_id, n.metric, n.version, n.precondition, n.sentence
  FROM main.runs AS r
  CROSS JOIN needs AS n
  LEFT JOIN met AS m ON r.run_id = m.run_id AND n.precondition = m.precondition
  WHERE m.run_id IS NULL
  QUALIFY ROW_NUMBER() OVER (PARTITION BY r.run_id, n.metric, n.version ORDER BY n.place) = 1
),
valued AS (SELECT run_id, metric, version FROM metrics.all_values GROUP BY run_id, metric, version)
SELECT
  r.run_id,
  w.metric,
  w.version,
  u.precondition AS unmet,
  COALESCE(u.sentence, w.otherwise) AS reason
FROM main.runs AS r
CROSS JOIN wanted AS w
LEFT JOIN valued AS v ON r.run_id = v.run_id AND w.metric = v.metric AND w.version = v.version
LEFT JOIN unmet AS u ON r.run_id = u.run_id AND w.metric = u.metric AND w.version = u.version
WHERE v.run_id IS NULL AND (w.is_stored OR u.run_id IS NOT NULL)
;

CREATE MACRO macros.bandwidth_by_size(run) AS TABLE WITH instances AS (
  SELECT
    kind,
    axis,
    bus_bytes,
    transfer_ps,
    CUME_DIST() OVER (PARTITION BY kind, axis, bus_bytes ORDER BY transfer_ps) AS quantile
  FROM models.collective_instances
  WHERE run_id = run AND NOT is_partial AND bus_bytes > 0 AND transfer_ps > 0
),

measured AS (
  SELECT
    kind,
    axis,
    bus_bytes,
    COUNT(*) AS executions,
    bus_bytes * 1e3 / MIN(transfer_ps) FILTER (WHERE quantile >= 0.5) AS gbps,
    bus_bytes * 1e3 / MIN(transfer_ps) FILTER (WHERE quantile >= 0.9) AS slow_gbps,
    bus_bytes * 1e3 / MIN(transfer_ps) FILTER (WHERE quantile >= 0.1) AS fast_gbps
  FROM instances
  GROUP BY kind, axis, bus_bytes
),

ranges AS (
  SELECT kind, axis, MIN(bus_bytes) AS smallest, MAX(bus_bytes) AS largest
  FROM measured
  GROUP BY kind, axis
),

sizes AS (
  SELECT kind, axis, smallest * POW(largest / smallest, UNNEST(RANGE(0, 25)) / 24.0) AS bus_bytes
  FROM ranges
),

fits AS (
  SELECT *
  FROM metrics.hockney
  WHERE run_id = run
),

fitted AS (
  SELECT kind, axis, s.bus_bytes, f.latency_us + s.bus_bytes / (1e3 * f.bandwidth_gbps) AS transfer_us
  FROM sizes AS s
  INNER JOIN fits AS f USING (kind, axis)
),

ends AS (
  SELECT UNNEST([MIN(bus_bytes), MAX(bus_bytes)]) AS bus_bytes
  FROM measured
),

links AS (
  SELECT kind, axis, link, peak_gbps
  FROM models.collective_links
  WHERE run_id = run
),

peaks AS (
  SELECT link, MIN(peak_gbps) AS gbps
  FROM links
  WHERE peak_gbps > 0
  GROUP BY link
)

SELECT
  'measured' AS what, -- measured, fit, or peak of the links.
  m.kind, -- Kind of collective; NULL for the peak.
  m.axis, -- Mesh axes of its groups; NULL for the peak.
  CAST(m.bus_bytes AS DOUBLE) AS bus_bytes, -- Bytes that a device sends.
  m.gbps, -- Bandwidth of the median execution, of the fit, or of the links.
  m.slow_gbps, -- Bandwidth of the 90th percentile of the times; NULL unless measured.
  m.fast_gbps, -- Bandwidth of the 10th percentile of the times; NULL unless measured.
  m.executions, -- Executions; NULL unless measured.
  l.link -- Class of the links that carry them: die, ici, nvlink or fabric, or mixed; NULL where not known.
FROM measured AS m
LEFT JOIN links AS l ON m.kind = l.kind AND m.axis = l.axis
UNION ALL
SELECT
  'fit' AS what, kind, axis, bus_bytes, bus_bytes / (1e3 * transfer_us) AS gbps,
  NULL AS slow_gbps, NULL AS fast_gbps, NULL AS executions, NULL AS link
FROM fitted
WHERE transfer_us > 0
UNION ALL
SELECT
  'peak of the links' AS what, NULL AS kind, NULL AS axis, e.bus_bytes, p.gbps,
  NULL AS slow_gbps, NULL AS fast_gbps, NULL AS executions, p.link
FROM ends AS e
CROSS JOIN peaks AS p
WHERE e.bus_bytes IS NOT NULL AND p.gbps IS NOT NULL;

CREATE MACRO macros.ccl_row(run) AS TABLE WITH steps AS (
  SELECT phase, COUNT(*) AS steps
  FROM models.run_steps
  WHERE run_id = run
  GROUP BY phase
),

chosen AS (
  SELECT MIN(phase) AS phase, MAX(steps) FILTER (WHERE phase = 'decode') AS decode_steps
  FROM steps
  WHERE phase IN ('prefill', 'mixed', 'decode') -- decode is the first of these names, and mixed the second
),

hosts AS (
  SELECT MAX(peak_ici_gbps) AS chip_ici_gbps, COUNT(*) AS devices
  FROM main.devices
  WHERE run_id = run
  GROUP BY host
),

chips AS (
  SELECT MAX(chip_ici_gbps) AS chip_ici_gbps, MAX(devices) AS devices_per_host
  FROM hosts
),

exposed AS (
  SELECT phase, AVG(fraction) * 100 AS share
  FROM metrics.communication_fraction
  WHERE run_id = run
  GROUP BY phase
),

transfers AS (
  SELECT phase, SUM(bus_gbps * transfer_ms) / NULLIF(SUM(transfer_ms), 0) AS bus_gbps
  FROM metrics.collective_transfer
  WHERE run_id = run
  GROUP BY phase
),

waits AS (
  SELECT phase, AVG(wait_ms) AS wait_ms
  FROM metrics.sync_wait
  WHERE run_id = run
  GROUP BY phase
)

SELECT
  c.phase, -- The phase whose steps the three metrics are of; NULL for steps without a phase.
  COALESCE(c.decode_steps, 0) AS decode_steps, -- Steps of decode.
  h.devices_per_host, -- Devices of the host with the most.
  h.chip_ici_gbps, -- Peak of a chip's links in each direction.
  -- Share of a step in which a device communicates and computes nothing, in percent, mean over devices.
  e.share AS exposed_communication_share,
  -- Bus bandwidth in GB/s: the bytes of all collectives over their time, each one's the shortest over its ranks.
  t.bus_gbps AS collective_bus_bandwidth,
  -- Time in ms per step that a device is in collectives beyond the shortest time over their ranks, mean over devices.
  w.wait_ms / s.steps AS collective_sync_wait
FROM chosen AS c
CROSS JOIN chips AS h
LEFT JOIN steps AS s ON c.phase IS NOT DISTINCT FROM s.phase
LEFT JOIN exposed AS e ON c.phase IS NOT DISTINCT FROM e.phase
LEFT JOIN transfers AS t ON c.phase IS NOT DISTINCT FROM t.phase
LEFT JOIN waits AS w ON c.phase IS NOT DISTINCT FROM w.phase;

CREATE MACRO macros.chrome_events(run, first_event, end_event, threads, is_for_viewers) AS TABLE WITH events AS (
  SELECT
    event_id,
    instruction_id,
    NULL AS name,
    start_ps,
    duration_ps,
    device_offset_ps,
    device_duration_ps,
    basis,
    low_ps,
    high_ps,
    is_extrapolated,
    COALESCE(flops, model_flops, bytes_accessed) IS NOT NULL AS is_costed,
    CASE WHEN is_for_viewers THEN iteration END AS iteration,
    CASE WHEN is_for_viewers THEN phase END AS phase,
    CASE WHEN is_for_viewers THEN step END AS step
  FROM main.ops
  WHERE run_id = run AND event_id >= first_event AND event_id < end_event
  UNION ALL
  SELECT
    event_id,
    NULL AS instruction_id,
    name,
    start_ps,
    duration_ps,
    NULL AS device_offset_ps,
    NULL AS device_duration_ps,
    NULL AS basis,
    NULL AS low_ps,
    NULL AS high_ps,
    NULL AS is_extrapolated,
    FALSE AS is_costed,
    NULL AS iteration,
    NULL AS phase,
    NULL AS step
  FROM main.host_events
  WHERE run_id = run AND event_id >= first_event AND event_id < end_event
),

layers AS (
  SELECT event_id, layer
  FROM models.op_layers
  WHERE run_id = run AND event_id >= first_event AND event_id < end_event AND layer IS NOT NULL AND is_for_viewers
),

all_stats AS (
  SELECT event_id, NULL AS instruction_id, name, kind, int_value, double_value, string_value
  FROM main.event_stats
  WHERE run_id = run AND event_id >= first_event AND event_id < end_event
  UNION ALL
  SELECT NULL AS event_id, instruction_id, name, kind, int_value, double_value, string_value
  FROM main.instruction_stats
  WHERE run_id = run
),

stat_texts AS (
  SELECT
    event_id,
    instruction_id,
    name,
    string_value,
    CAST(TO_JSON(name) AS VARCHAR) || ':' AS key,
    CAST(int_value AS VARCHAR) AS number,
    CASE
      WHEN kind = 'double' AND ISFINITE(double_value) THEN CAST(double_value AS VARCHAR)
      WHEN kind = 'double' THEN '"' || double_value || '"'
      WHEN kind = 'bytes' THEN '"<opaque bytes>"'
      ELSE COALESCE('"' || int_value || '"', CAST(TO_JSON(COALESCE(string_value, '')) AS VARCHAR))
    END AS value
  FROM all_stats
),

-- integers are texts, but for the value of a counter, which viewers draw if it is a number
stats AS (
  SELECT
    event_id,
    STRING_AGG(key || value, ',') AS members,
    STRING_AGG(key || COALESCE(number, value), ',') AS samples
  FROM stat_texts
  WHERE event_id IS NOT NULL
  GROUP BY event_id
),

instruction_texts AS (
  SELECT
    instruction_id,
    MAX(string_value) FILTER (WHERE name = 'name') AS long_name,
    MAX(string_value) FILTER (WHERE name IN ('display_name', 'event_name')) AS event_name,
    STRING_AGG(key || value, ',') FILTER (WHERE name NOT IN ('name', 'display_name', 'event_name')) AS members
  FROM stat_texts
  WHERE instruction_id IS NOT NULL
  GROUP BY instruction_id
),

used AS (
  SELECT *
  FROM main.instructions
  WHERE run_id = run AND instruction_id IN (SELECT e.instruction_id FROM events AS e)
),

texts AS (
  SELECT
    instruction_id,
    i.opcode,
    i.module,
    i.program_id,
    COALESCE(s.event_name, i.name) AS name,
    s.event_name,
    s.members,
    '"hlo_op":' || CAST(TO_JSON(i.name) AS VARCHAR) AS hlo_op,
    '"hlo_module":' || CAST(TO_JSON(i.module) AS VARCHAR) AS hlo_module,
    '"program_id":"' || i.program_id || '"' AS program,
    '"model_flops":"' || i.model_flops || '"' AS model_flops,
    CONCAT_WS(
      ',',
      '"hlo_category":' || CAST(TO_JSON(i.category) AS VARCHAR),
      '"long_name":' || CAST(TO_JSON(COALESCE(i.hlo_text, s.long_name)) AS VARCHAR),
      '"flops":"' || i.flops || '"',
      '"bytes_accessed":"' || i.bytes_accessed || '"',
      '"program_id":"' || i.program_id || '"',
      '"source":' || CAST(TO_JSON(i.source) AS VARCHAR),
      '"tf_op":' || CAST(TO_JSON(i.op_name) AS VARCHAR)
    ) AS described,
    i.hlo_text,
    -- the text of an instruction whose facts were in a proto; it lacks the operands, which no table has
    '%' || i.name || ' = ' || i.shape || ' ' || i.opcode || '()' || CONCAT_WS(
      '',
      CASE WHEN i.category LIKE '_% fusion' THEN ', kind=k' || UPPER(i.category[1]) || i.category[2:-8] END,
      ', channel_id=' || i.channel_id,
      CASE
        WHEN i.opcode LIKE 'collective-permute%' OR i.opcode LIKE 'send%' OR i.opcode LIKE 'recv%'
          THEN ', source_target_pairs='
        ELSE ', replica_groups='
      END || TRANSLATE(i.replica_groups, '[]', '{}'),
      ', metadata={' || NULLIF(CONCAT_WS(
        ' ',
        'op_name="' || REPLACE(REPLACE(i.op_name, '\', '\\'), '"', '\"') || '"',
        'source_file="'
        || REPLACE(REPLACE(REGEXP_REPLACE(i.source, ':[0-9]+$', ''), '\', '\\'), '"', '\"') || '"',
        'source_line=' || NULLIF(REGEXP_EXTRACT(i.source, ':([0-9]+)$', 1), '')
      ), '') || '}'
    ) AS made_text
  FROM used AS i
  LEFT JOIN instruction_texts AS s USING (instruction_id)
),

-- an op of a TPU has the facts of its instruction as arguments, an op of a GPU or a virtual device names it. An
-- asynchronous op has no model_flops, as readers that add up all events would count them here and at the start half.
instructions AS (
  SELECT
    instruction_id,
    name,
    NULLIF(CONCAT_WS(',', NULLIF(described, ''), model_flops, members), '') AS members,
    NULLIF(CONCAT_WS(',', NULLIF(described, ''), members), '') AS async_members,
    NULLIF(CONCAT_WS(
      ',',
      CASE WHEN COALESCE(module, opcode, event_name, CAST(program_id AS VARCHAR)) IS NOT NULL THEN hlo_op END,
      hlo_module,
      program,
      '"long_name":' || CAST(TO_JSON(COALESCE(hlo_text, made_text)) AS VARCHAR),
      members
    ), '') AS named_members
  FROM texts
),

lines AS (
  SELECT UNNEST(threads, max_depth := 2)
),

-- Microseconds with six decimals are exact. The Perfetto UI multiplies them, as doubles, by 1000 and rounds.
timed AS (
  SELECT
    e.*,
    t.place,
    t.kind,
    t.is_named,
    CAST(ROUND(e.duration_ps / 1e6 * 1000) AS BIGINT) AS rounded_ns,
    CAST(ROUND((e.start_ps + e.duration_ps) / 1e6 * 1000) AS BIGINT)
    - CAST(ROUND(e.start_ps / 1e6 * 1000) AS BIGINT) AS shown_ns
  FROM events AS e
  ASOF INNER JOIN lines AS t ON e.event_id >= t.first_event_id
),

shown AS (
  SELECT
    *,
    CAST(start_ps AS DECIMAL(19)) * 0.000001 AS ts,
    CAST(duration_ps AS DECIMAL(19)) * 0.000001 AS dur,
    CAST(start_ps + duration_ps AS DECIMAL(19)) * 0.000001 AS end_ts,
    CASE WHEN is_for_viewers AND shown_ns <> rounded_ns THEN CAST(shown_ns AS DECIMAL(19)) * 0.001000 END AS shown_dur
  FROM timed
),

written AS (
  SELECT
    e.event_id,
    e.place,
    e.kind,
    e.duration_ps,
    e.ts,
    e.dur,
    e.end_ts,
    e.shown_dur,
    CASE WHEN e.kind = 'async_ops' THEN PRINTF(',"cat":"async","id2":{"local":"0x%x"}', e.event_id) END AS async_id,
    CAST(TO_JSON(COALESCE(i.name, e.name)) AS VARCHAR) AS name,
    s.samples,
    CONCAT_WS(
      ',',
      CASE WHEN NOT e.is_costed THEN s.members END,
      CASE WHEN e.is_named THEN i.named_members WHEN e.kind = 'async_ops' THEN i.async_members ELSE i.members END,
      '"device_offset_ps":"' || e.device_offset_ps || '"',
      '"device_duration_ps":"' || e.device_duration_ps || '"',
      '"predicted_basis":"' || e.basis || '"',
      '"predicted_low_ps":"' || e.low_ps || '"',
      '"predicted_high_ps":"' || e.high_ps || '"',
      '"predicted_is_extrapolated":"' || CAST(e.is_extrapolated AS INTEGER) || '"',
      CASE WHEN e.is_costed THEN s.members END,
      '"layer":"' || l.layer || '"',
      '"iteration":"' || e.iteration || '"',
      '"phase":"' || e.phase || '"',
      '"step":"' || e.step || '"'
    ) AS members
  FROM shown AS e
  LEFT JOIN instructions AS i USING (instruction_id)
  LEFT JOIN stats AS s USING (event_id)
  LEFT JOIN layers AS l USING (event_id)
)

SELECT
  event_id, -- The event.
  -- Its text in traceEvents, with the comma and the new line that follow.
  CASE
    WHEN kind = 'async_ops'
      THEN
        '{"ph":"b",' || place || ',"ts":' || ts || ',"exact_dur":' || dur || async_id || ',"name":' || name
        || ',"args":{' || members || '}},' || CHR(10)
        || '{"ph":"e",' || place || ',"ts":' || end_ts || ',"exact_dur":' || dur || async_id || ',"name":' || name
    WHEN kind = 'counters' AND duration_ps = 0
      THEN '{"ph":"C",' || place || ',"ts":' || ts || ',"name":' || name || ',"args":{' || COALESCE(samples, '') || '}'
    ELSE
      '{"ph":"X",' || place || ',"ts":' || ts || ',"dur":' || COALESCE(shown_dur || ',"exact_dur":', '') || dur
      || ',"name":' || name || COALESCE(',"args":{' || NULLIF(members, '') || '}', '')
  END || '},' || CHR(10) AS text
FROM written;

CREATE MACRO macros.selected_collectives(run, from_ps, until_ps, only_phase, first_step, last_step) AS TABLE WITH ranks AS (
  SELECT *
  FROM main.collectives
  WHERE
    run_id = run
    AND (from_ps IS NULL OR start_ps >= from_ps)
    AND (until_ps IS NULL OR start_ps < until_ps)
    AND (only_phase IS NULL OR phase = only_phase)
    AND (first_step IS NULL OR step >= first_step)
    AND (last_step IS NULL OR step <= last_step)
),

executions AS (
  SELECT instance, MIN(instruction_id) AS instruction_id, MAX(end_ps) - MIN(start_ps) AS execution_ps
  FROM ranks
  WHERE instance IS NOT NULL
  GROUP BY instance
  HAVING COUNT(*) > 1
),

medians AS (
  SELECT instruction_id, MEDIAN(execution_ps) AS median_ps
  FROM executions
  GROUP BY instruction_id
),

layers AS (
  SELECT event_id, layer
  FROM models.op_layers
  WHERE run_id = run
)

SELECT
  r.event_id, -- The event.
  r.device_id, -- The device.
  r.instruction_id, -- The HLO instruction.
  r.instance, -- The execution, which the ranks share; NULL if unknown.
  r.kind, -- Kind of collective.
  r.axis, -- Mesh axis.
  r.group_size, -- Ranks in the group.
  r.rank_in_group, -- Rank of the device in the group.
  r.message_bytes, -- Bytes of the message.
  r.wire_bytes, -- Bytes that the device sends.
  r.exposed_ps, -- Time in which the device computes nothing.
  r.dtype, -- Type of the elements.
  r.phase, -- Phase.
  r.step, -- Step.
  l.layer,
  r.start_ps, -- Start.
  r.end_ps, -- End, exclusive.
  CONCAT_WS(' ', r.kind, r.axis) AS track, -- Kind and mesh axis.
  -- Whether the execution lasts more than 1.5 times the median of its instruction's.
  COALESCE(e.execution_ps > 1.5 * m.median_ps, FALSE) AS is_slow
FROM ranks AS r
LEFT JOIN executions AS e USING (instance)
LEFT JOIN medians AS m ON e.instruction_id = m.instruction_id
LEFT JOIN layers AS l ON r.event_id = l.event_id;

CREATE MACRO macros.compare_steps(runs, baselines) AS TABLE WITH parts AS (
  SELECT
    * EXCLUDE (run_id),
    LIST_CONTAINS(runs, run_id) AS is_run,
    LIST_CONTAINS(baselines, run_id) AS is_baseline,
    layer IS NOT NULL OR COALESCE(part IN ('embed', 'lm_head', 'pipeline'), FALSE) AS is_known
  FROM models.step_composition
  WHERE LIST_CONTAINS(LIST_CONCAT(runs, baselines), run_id)
),

-- the phases in which both sides know the place of most op time
known_layers AS (
  SELECT COALESCE(phase, '') AS phase
  FROM parts
  WHERE NOT is_idle
  GROUP BY phase
  HAVING
    COALESCE(SUM(time_ps) FILTER (WHERE is_run AND is_known), 0) * 10
    >= COALESCE(SUM(time_ps) FILTER (WHERE is_run), 0) * 9
    AND COALESCE(SUM(time_ps) FILTER (WHERE is_baseline AND is_known), 0) * 10
    >= COALESCE(SUM(time_ps) FILTER (WHERE is_baseline), 0) * 9
),

timed AS (
  SELECT run_id, device_id, step
  FROM models.steps
  WHERE clock = 'device' AND is_timed AND LIST_CONTAINS(LIST_CONCAT(runs, baselines), run_id)
),

exposed AS (
  SELECT run_id, c.phase, c.kind, c.axis, SUM(c.exposed_added_ps) AS time_ps, COUNT(*) AS executions
  FROM main.collectives AS c
  INNER JOIN timed USING (run_id, device_id, step)
  GROUP BY run_id, c.phase, c.kind, c.axis
),

step_parts AS (
  SELECT run_id, phase, kind || COALESCE(' over ' || axis, '') AS name, time_ps, executions
  FROM exposed
  UNION ALL
  SELECT run_id, phase, 'other communication' AS name, -time_ps AS time_ps, 0 AS executions
  FROM exposed
  UNION ALL
  SELECT
    run_id, phase,
    CASE WHEN part = 'exposed communication' THEN 'other communication' ELSE part END AS name,
    time_ps,
    0 AS executions
  FROM models.step_parts
  WHERE LIST_CONTAINS(LIST_CONCAT(runs, baselines), run_id)
),

named AS (
  SELECT
    LIST_CONTAINS(runs, run_id) AS is_run,
    LIST_CONTAINS(baselines, run_id) AS is_baseline,
    phase,
    'part' AS split,
    name, time_ps, executions
  FROM step_parts
  UNION ALL
  SELECT
    is_run, is_baseline, phase,
    'layer' AS split,
    CASE
      WHEN is_idle THEN 'idle'
      WHEN COALESCE(phase, '') NOT IN (SELECT k.phase FROM known_layers AS k) THEN 'unknown layers'
      WHEN layer IS NULL THEN 'no layer'
      ELSE 'layer ' || layer
    END AS name,
    time_ps,
    0 AS executions
  FROM parts
  UNION ALL
  SELECT
    is_run, is_baseline, phase,
    'category' AS split,
    CASE WHEN is_idle THEN 'idle' ELSE COALESCE(category, 'no category') END AS name,
    time_ps,
    0 AS executions
  FROM parts
  UNION ALL
  SELECT
    is_run, is_baseline, phase,
    'collective' AS split,
    CASE
      WHEN is_idle THEN 'idle'
      WHEN collective IS NULL THEN 'no collective'
      ELSE collective || ' over ' || axis
    END AS name,
    time_ps,
    0 AS executions
  FROM parts
  UNION ALL
  SELECT
    is_run, is_baseline, phase,
    'operation' AS split,
    CASE
      WHEN is_idle THEN 'idle'
      ELSE COALESCE(REGEXP_REPLACE(op_name, '[.][0-9]+(/|:|$)', '\1', 'g'), kernel)
    END AS name,
    time_ps,
    0 AS executions
  FROM parts
),

steps AS (
  SELECT
    phase,
    NULLIF(COUNT(*) FILTER (WHERE LIST_CONTAINS(runs, run_id)), 0) AS value_steps,
    NULLIF(COUNT(*) FILTER (WHERE LIST_CONTAINS(baselines, run_id)), 0) AS baseline_steps,
    SUM(step_ps) FILTER (WHERE LIST_CONTAINS(runs, run_id)) AS value_ps,
    SUM(step_ps) FILTER (WHERE LIST_CONTAINS(baselines, run_id)) AS baseline_ps
  FROM models.steps
  WHERE clock = 'device' AND is_timed AND LIST_CONTAINS(LIST_CONCAT(runs, baselines), run_id)
  GROUP BY phase
),

paired AS (
  SELECT
    phase, split, name,
    COALESCE(SUM(time_ps) FILTER (WHERE is_baseline), 0) AS baseline_ps,
    COALESCE(SUM(time_ps) FILTER (WHERE is_run), 0) AS value_ps,
    COALESCE(SUM(executions) FILTER (WHERE is_baseline), 0) AS baseline_executions,
    COALESCE(SUM(executions) FILTER (WHERE is_run), 0) AS value_executions
  FROM named
  GROUP BY phase, split, name
  HAVING split <> 'part' OR SUM(time_ps) <> 0 OR SUM(executions) > 0
)

SELECT
  p.phase,
  p.split, -- part, layer, category, collective or operation.
  -- The part, layer, category, collective or operation; idle for the time without an op, unknown layers where too little
  -- of it has a known one, other communication for ops of none of the collectives.
  p.name,
  p.baseline_ps / (t.baseline_steps * 1e6) AS baseline_us, -- Its time in a step of the baselines.
  p.value_ps / (t.value_steps * 1e6) AS value_us, -- Its time in a step of the runs.
  -- value_us - baseline_us; NULL if a side has no step of the phase.
  (p.value_ps * t.baseline_steps - p.baseline_ps * t.value_steps)
  / (t.value_steps * t.baseline_steps * 1e6) AS difference_us,
  -- difference_us over the difference of the whole step; NULL if the steps are equally long.
  (p.value_ps * t.baseline_steps - p.baseline_ps * t.value_steps)
  / NULLIF(t.value_ps * t.baseline_steps - t.baseline_ps * t.value_steps, 0) AS share,
  CAST(p.baseline_ps AS BIGINT) AS baseline_ps, -- Its time in the baselines over all steps and devices.
  CAST(t.baseline_steps AS BIGINT) AS baseline_steps, -- Steps of the baselines, counted on every device.
  CAST(p.value_ps AS BIGINT) AS value_ps, -- Its time in the runs over all steps and devices.
  CAST(t.value_steps AS BIGINT) AS value_steps, -- Steps of the runs, counted on every device.
  -- In the split by part, the collectives on a device in a step of the baselines; otherwise 0.
  p.baseline_executions / t.baseline_steps AS baseline_executions,
  p.value_executions / t.value_steps AS value_executions -- The same of the runs.
FROM paired AS p
INNER JOIN steps AS t ON p.phase IS NOT DISTINCT FROM t.phase;

CREATE MACRO macros.compare_values(runs, baselines, run_repeats := NULL, baseline_repeats := NULL) AS TABLE WITH newest AS (
  SELECT metric, version, status, polarity
  FROM metrics.catalog
  QUALIFY
    ROW_NUMBER() OVER (
      PARTITION BY metric ORDER BY status = 'stable' DESC, status <> 'deprecated' DESC, version DESC
    ) = 1
),

members AS (
  SELECT 'run' AS side, TRUE AS is_named, UNNEST(LIST_DISTINCT(runs)) AS run_id
  UNION ALL
  SELECT 'baseline' AS side, TRUE AS is_named, UNNEST(LIST_DISTINCT(baselines)) AS run_id
  UNION ALL
  SELECT 'run' AS side, FALSE AS is_named, UNNEST(LIST_DISTINCT(COALESCE(run_repeats, runs))) AS run_id
  UNION ALL
  SELECT 'baseline' AS side, FALSE AS is_named, UNNEST(LIST_DISTINCT(COALESCE(baseline_repeats, baselines))) AS run_id
),

stored AS (
  SELECT
    run_id, metric, version,
    CAST(JSON_MERGE_PATCH(dimensions, '{"step": null}') AS VARCHAR) AS dimensions,
    JSON_EXISTS(dimensions, '$.step') AS is_per_step,
    value, unit
  FROM main.metric_values
  WHERE
    value IS NOT NULL
    AND (
      LIST_CONTAINS(LIST_CONCAT(runs, baselines), run_id)
      OR LIST_CONTAINS(LIST_CONCAT(run_repeats, baseline_repeats), run_id)
    )
),

samples AS (
  SELECT
    m.side, m.is_named, run_id, metric, t.unit, t.dimensions, t.is_per_step, t.value,
    CASE WHEN n.polarity = 'higher_is_better' THEN -t.value ELSE t.value END AS badness
  FROM stored AS t
  INNER JOIN newest AS n USING (metric, version)
  INNER JOIN members AS m USING (run_id)
),

ranked AS (
  SELECT
    * EXCLUDE (is_named),
    CUME_DIST() OVER (PARTITION BY side, metric, dimensions ORDER BY badness) AS quantile
  FROM samples
  WHERE is_named
),

sides AS (
  SELECT
    side, metric, dimensions,
    MIN(unit) AS unit,
    BOOL_OR(is_per_step) AS is_per_step,
    COUNT(*) AS samples,
    ARG_MIN(value, badness) FILTER (WHERE quantile >= 0.5) AS median,
    ARG_MIN(value, badness) FILTER (WHERE quantile >= 0.9) AS tail,
    MIN(badness) FILTER (WHERE quantile >= 0.75) - MIN(badness) FILTER (WHERE quantile >= 0.25) AS middle_half
  FROM ranked
  GROUP BY side, metric, dimensions
),

ranked_in_run AS (
  SELECT
    side, run_id, metric, dimensions, badness,
    CUME_DIST() OVER (PARTITION BY side, run_id, metric, dimensions ORDER BY badness) AS quantile
  FROM samples
  WHERE NOT is_named
),

medians AS (
  SELECT side, run_id, metric, dimensions, MIN(badness) FILTER (WHERE quantile >= 0.5) AS badness
  FROM ranked_in_run
  GROUP BY side, run_id, metric, dimensions
),

repeats AS (
  SELECT side, metric, dimensions, COUNT(*) AS runs_counted, MAX(badness) - MIN(badness) AS spread
  FROM medians
  GROUP BY side, metric, dimensions
),

widest AS (
  SELECT metric, dimensions, MAX(runs_counted) AS most_runs, MAX(spread) AS spread
  FROM repeats
  GROUP BY metric, dimensions
),

paired AS (
  SELECT
    metric, dimensions,
    MIN(unit) AS unit,
    MAX(median) FILTER (WHERE side = 'baseline') AS baseline,
    MAX(median) FILTER (WHERE side = 'run') AS value,
    MAX(tail) FILTER (WHERE side = 'baseline') AS baseline_tail,
    MAX(tail) FILTER (WHERE side = 'run') AS tail,
    COALESCE(MAX(samples) FILTER (WHERE side = 'baseline'), 0) AS baseline_samples,
    COALESCE(MAX(samples) FILTER (WHERE side = 'run'), 0) AS samples,
    CASE
      WHEN BOOL_AND(is_per_step AND samples >= 4) AND COUNT(*) = 2
        THEN SUM(1.57e0 * middle_half / SQRT(samples))
    END AS notches
  FROM sides
  GROUP BY metric, dimensions
),

-- the phases in which both sides know the place of most op time, from the least that is known in a run
known_layers AS (
  SELECT dimensions ->> '$.phase' AS phase
  FROM samples
  WHERE is_named AND metric = 'layer_coverage'
  GROUP BY phase
  HAVING
    MIN(value) >= 0.9
    AND COUNT(DISTINCT run_id) = (
      SELECT COUNT(DISTINCT m.run_id)
      FROM members AS m
      WHERE m.is_named
    )
),

judged AS (
  SELECT
    metric, n.version, n.status, n.polarity, dimensions, p.unit, p.baseline, p.value,
    p.value - p.baseline AS difference,
    p.baseline_tail, p.tail, CASE
      WHEN n.polarity = 'lower_is_better' THEN p.value - p.baseline
      WHEN n.polarity = 'higher_is_better' THEN p.baseline - p.value
    END AS worse_by,
    CASE
      WHEN n.polarity = 'lower_is_better' THEN p.tail - p.baseline_tail
      WHEN n.polarity = 'higher_is_better' THEN p.baseline_tail - p.tail
    END AS tail_worse_by,
    p.baseline_samples, p.samples,
    CASE WHEN w.most_runs >= 5 THEN w.spread WHEN w.most_runs >= 2 THEN 2 * w.spread ELSE p.notches END AS noise,
    CASE WHEN w.most_runs >= 2 THEN 'repeats' WHEN p.notches IS NOT NULL THEN 'steps' END AS noise_source,
    JSON_EXISTS(dimensions, '$.layer')
    AND COALESCE(dimensions ->> '$.phase', '') NOT IN (SELECT COALESCE(k.phase, '') FROM known_layers AS k)
      AS lacks_layers
  FROM paired AS p
  INNER JOIN newest AS n USING (metric)
  LEFT JOIN widest AS w USING (metric, dimensions)
)

SELECT
  metric, -- The metric.
  version, -- Its version.
  status, -- experimental, stable or deprecated.
  polarity, -- higher_is_better, lower_is_better or none.
  dimensions, -- The grain without run and step, as a JSON object.
  unit, -- Unit of the values.
  baseline, -- Median over the samples of the baselines; NULL if they have none.
  value, -- Median over the samples of the runs; NULL if they have none.
  difference, -- value - baseline.
  -- difference over the baseline's magnitude; NULL for a baseline of 0, and if it is not judged.
  CASE WHEN baseline <> 0 AND NOT lacks_layers THEN difference / ABS(baseline) END AS relative,
  -- How much worse, as a share of the baseline; negative if better, infinite for any loss from 0, NULL without
  -- polarity.
  CASE
    WHEN lacks_layers THEN NULL
    WHEN worse_by = 0 THEN 0
    WHEN baseline <> 0 THEN worse_by / ABS(baseline)
    ELSE worse_by * CAST('infinity' AS DOUBLE)
  END AS loss,
  baseline_tail, -- 90th percentile towards the worse side, of the baselines.
  tail, -- 90th percentile towards the worse side, of the runs.
  CASE
    WHEN lacks_layers THEN NULL
    WHEN tail_worse_by = 0 THEN 0
    WHEN baseline_tail <> 0 THEN tail_worse_by / ABS(baseline_tail)
    ELSE tail_worse_by * CAST('infinity' AS DOUBLE)
  END AS tail_loss, -- How much worse the tail is, as a share of the baseline's tail.
  baseline_samples, -- Samples of the baselines.
  samples, -- Samples of the runs.
  noise, -- The largest difference that counts as noise; NULL if noise cannot be told.
  noise_source, -- repeats or steps; NULL if noise cannot be told.
  -- same, noise, better or worse; unknown where the values differ and noise cannot be told, unless they are bytes or
  -- counts, which equal runs have alike; different for a metric without polarity; not in run or not in baseline if one
  -- side has no value; not judged for a number by layer if less than 0.9 of a side's op time has a known layer.
  CASE
    WHEN lacks_layers THEN 'not judged'
    WHEN value IS NULL THEN 'not in run'
    WHEN baseline IS NULL THEN 'not in baseline'
    WHEN difference = 0 THEN 'same'
    WHEN ABS(difference) <= noise THEN 'noise'
    WHEN polarity = 'none' THEN 'different'
    WHEN noise IS NULL AND unit NOT IN ('bytes', 'count') THEN 'unknown'
    WHEN worse_by > 0 THEN 'worse'
    ELSE 'better'
  END AS verdict
FROM judged;

CREATE MACRO macros.configurations() AS TABLE WITH kinds AS (
  SELECT run_id, MIN(kind) AS device_kind
  FROM main.devices
  GROUP BY run_id
),

predicted AS (
  SELECT
    run_id,
    MIN(topology) AS topology,
    MIN(rules_version) AS rules_version,
    MIN(ici_factor) AS ici_factor,
    MIN(hbm_factor) AS hbm_factor,
    MIN(host_ps) AS host_ps,
    MIN(kernels) AS kernels,
    MIN(chip_price_usd_per_h) AS chip_price_usd_per_h,
    MIN(compiled_layers) AS compiled_layers,
    COUNT(*) AS steps,
    MIN(calibration) AS calibration
  FROM main.predictions
  GROUP BY run_id
),

described AS (
  SELECT
    run_id, r.origin, p.topology, p.rules_version, p.ici_factor, p.hbm_factor, p.host_ps, p.kernels, p.calibration,
    p.chip_price_usd_per_h, p.compiled_layers, p.steps,
    r.backend, r.device_count, CAST(r.manifest AS JSON) AS manifest, k.device_kind
  FROM main.runs AS r
  LEFT JOIN kinds AS k USING (run_id)
  LEFT JOIN predicted AS p USING (run_id)
  WHERE r.manifest IS NOT NULL
)

SELECT
  run_id,
  CAST(
    JSON_OBJECT(
      'spec', JSON_MERGE_PATCH(manifest -> '$.spec', '{"repeat": null}'),
      'versions', manifest -> '$.versions',
      'git_commit', manifest -> '$.git_commit',
      'backend', backend,
      'device_count', device_count,
      'device_kind', device_kind,
      'origin', origin,
      'prediction', CASE
        WHEN origin = 'predicted'
          THEN [
            topology, CAST(rules_version AS VARCHAR), CAST(ici_factor AS VARCHAR), CAST(hbm_factor AS VARCHAR),
            CAST(host_ps AS VARCHAR), kernels, calibration,
            CAST(chip_price_usd_per_h AS VARCHAR), CAST(compiled_layers AS VARCHAR), CAST(steps AS VARCHAR)
          ]
      END
    ) AS VARCHAR
  ) AS configuration -- The configuration as text; equal for repeats.
FROM described
WHERE JSON_TYPE(manifest -> '$.spec') = 'OBJECT';

CREATE MACRO macros.evenness(runs) AS TABLE WITH busy AS (
  SELECT run_id, device_id, phase, compute_ps
  FROM models.device_phases
  WHERE LIST_CONTAINS(runs, run_id)
),

-- a device that computes nothing is only copied to
computing AS (
  SELECT run_id, device_id
  FROM busy
  GROUP BY run_id, device_id
  HAVING SUM(compute_ps) > 0
),

balance AS (
  SELECT
    run_id, b.phase,
    COUNT(*) AS devices,
    MAX(b.compute_ps) * COUNT(*) / NULLIF(SUM(b.compute_ps), 0) AS compute_imbalance
  FROM busy AS b
  INNER JOIN computing USING (run_id, device_id)
  GROUP BY run_id, b.phase
),

ops AS (
  SELECT run_id, phase, layer, device_id, SUM(self_ps) AS self_ps
  FROM models.layer_ops
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id, phase, layer, device_id
),

layers AS (
  SELECT o.run_id, o.phase, o.layer, SUM(o.self_ps) / (SUM(COALESCE(s.steps, 1)) * 1e6) AS self_us
  FROM ops AS o
  LEFT JOIN models.phase_steps AS s
    ON o.run_id = s.run_id AND o.device_id = s.device_id AND o.phase IS NOT DISTINCT FROM s.phase
  GROUP BY o.run_id, o.phase, o.layer
),

ranked AS (
  SELECT
    *,
    CUME_DIST() OVER (PARTITION BY run_id, phase ORDER BY self_us) AS quantile
  FROM layers
),

medians AS (
  SELECT run_id, phase, COUNT(*) AS layers, MIN(self_us) FILTER (WHERE quantile >= 0.5) AS median_us
  FROM ranked
  GROUP BY run_id, phase
),

odd AS (
  SELECT
    l.run_id, l.phase,
    MIN(m.layers) AS layers,
    ARG_MAX(l.layer, ABS(l.self_us - m.median_us)) AS odd_layer,
    ARG_MAX(l.self_us / NULLIF(m.median_us, 0) - 1, ABS(l.self_us - m.median_us)) AS odd_difference
  FROM layers AS l
  INNER JOIN medians AS m ON l.run_id = m.run_id AND l.phase IS NOT DISTINCT FROM m.phase
  GROUP BY l.run_id, l.phase
)

SELECT
  b.run_id, b.phase,
  b.devices, -- Devices that ran the phase and compute.
  -- Compute time of the busiest device over the mean; NULL without compute.
  b.compute_imbalance,
  o.layers, -- Layers of the phase; NULL if unknown.
  o.odd_layer, -- The layer whose time is farthest from the median layer's.
  o.odd_difference -- How much longer it takes than the median layer, as a share of it; negative if it takes less.
FROM balance AS b
LEFT JOIN odd AS o ON b.run_id = o.run_id AND b.phase IS NOT DISTINCT FROM o.phase;

CREATE MACRO macros.mean_layers(runs) AS TABLE WITH placed AS (
  SELECT run_id, device_id, phase, instruction_id, layer, self_ps, start_ps
  FROM models.layer_ops
  WHERE LIST_CONTAINS(runs, run_id)
),

ran AS (
  SELECT run_id, device_id, phase, layer
  FROM placed
  GROUP BY run_id, device_id, phase, layer
),

stepped AS (
  SELECT r.run_id, r.phase, r.layer, SUM(COALESCE(s.steps, 1)) AS steps
  FROM ran AS r
  LEFT JOIN models.phase_steps AS s
    ON r.run_id = s.run_id AND r.device_id = s.device_id AND r.phase IS NOT DISTINCT FROM s.phase
  GROUP BY r.run_id, r.phase, r.layer
),

ops AS (
  SELECT
    run_id, p.phase, p.layer, c.class, i.part,
    REGEXP_REPLACE(i.name, '([.][0-9]+)+$', '') AS op,
    instruction_id,
    SUM(p.self_ps) AS self_ps,
    MIN(p.start_ps) AS start_ps
  FROM placed AS p
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  INNER JOIN models.instruction_classes AS c USING (run_id, instruction_id)
  GROUP BY run_id, p.phase, p.layer, c.class, i.part, i.name, instruction_id
),

numbered AS (
  SELECT
    o.run_id, o.phase, o.layer, o.class, o.part, o.op,
    o.self_ps / (s.steps * 1e6) AS self_us,
    o.start_ps - MIN(o.start_ps) OVER (PARTITION BY o.run_id, o.phase, o.layer) AS offset_ps,
    ROW_NUMBER() OVER (
      PARTITION BY o.run_id, o.phase, o.layer, o.class, o.part, o.op ORDER BY o.start_ps, o.instruction_id
    ) AS occurrence
  FROM ops AS o
  INNER JOIN stepped AS s ON o.run_id = s.run_id AND o.phase IS NOT DISTINCT FROM s.phase AND o.layer = s.layer
),

totals AS (
  SELECT run_id, phase, layer, SUM(self_us ORDER BY self_us) AS self_us
  FROM numbered
  GROUP BY run_id, phase, layer
),

ranked AS (
  SELECT
    *,
    COUNT(*) OVER (PARTITION BY run_id, phase) AS layers,
    CUME_DIST() OVER (PARTITION BY run_id, phase ORDER BY self_us) AS quantile
  FROM totals
),

medians AS (
  SELECT run_id, phase, MIN(layers) AS layers, MIN(self_us) FILTER (WHERE quantile >= 0.5) AS median_us
  FROM ranked
  GROUP BY run_id, phase
),

same AS (
  SELECT
    n.run_id, n.phase, n.class, n.part, n.op, n.occurrence,
    SUM(n.self_us ORDER BY n.self_us) / MIN(m.layers) AS self_us,
    SUM(n.offset_ps) / COUNT(*) AS offset_ps,
    COUNT(*) >= 0.8 * MIN(m.layers) AS is_common
  FROM numbered AS n
  INNER JOIN medians AS m ON n.run_id = m.run_id AND n.phase IS NOT DISTINCT FROM m.phase
  GROUP BY n.run_id, n.phase, n.class, n.part, n.op, n.occurrence
),

alike AS (
  SELECT run_id, phase, COALESCE(SUM(self_us) FILTER (WHERE is_common), 0) >= 0.9 * SUM(self_us) AS is_alike
  FROM same
  GROUP BY run_id, phase
),

ordered AS (
  SELECT
    s.run_id, s.phase, s.class, s.part, s.op, s.self_us,
    ROW_NUMBER() OVER (PARTITION BY s.run_id, s.phase ORDER BY s.offset_ps, s.op, s.occurrence) AS place,
    s.self_us < 0.005 * m.median_us AS is_small
  FROM same AS s
  INNER JOIN medians AS m ON s.run_id = m.run_id AND s.phase IS NOT DISTINCT FROM m.phase
),

followed AS (
  SELECT
    *,
    LAG(class) OVER (PARTITION BY run_id, phase ORDER BY place) AS class_before,
    LAG(part) OVER (PARTITION BY run_id, phase ORDER BY place) AS part_before
  FROM ordered
  WHERE NOT is_small
),

-- A small op belongs to the bar before it.
firsts AS (
  SELECT run_id, phase, place
  FROM followed
  WHERE class IS DISTINCT FROM class_before OR part IS DISTINCT FROM part_before
),

stretches AS (
  SELECT
    o.run_id, o.phase, o.class, o.part, o.op, o.self_us, o.place,
    GREATEST(1, COUNT(f.place) OVER (
      PARTITION BY o.run_id, o.phase ORDER BY o.place ROWS UNBOUNDED PRECEDING
    )) AS stretch
  FROM ordered AS o
  LEFT JOIN firsts AS f ON o.run_id = f.run_id AND o.phase IS NOT DISTINCT FROM f.phase AND o.place = f.place
),

bars AS (
  SELECT
    run_id, phase, stretch,
    ARG_MAX(class, self_us) AS class,
    ARG_MAX(part, self_us) AS part,
    ARG_MAX(op, self_us) AS op,
    COUNT(*) AS ops,
    SUM(self_us ORDER BY place) AS self_us
  FROM stretches
  GROUP BY run_id, phase, stretch
),

drawn AS (
  SELECT
    'mean layer' AS what,
    run_id, phase,
    CAST(NULL AS BIGINT) AS layer,
    class, part, op, ops, stretch AS place, self_us,
    SUM(self_us) OVER (PARTITION BY run_id, phase ORDER BY stretch ROWS UNBOUNDED PRECEDING) AS until_us
  FROM bars
  UNION ALL
  SELECT
    'layer' AS what,
    run_id, phase, layer,
    NULL AS class,
    NULL AS part,
    NULL AS op,
    NULL AS ops,
    layer AS place,
    self_us,
    NULL AS until_us
  FROM totals
)

SELECT
  d.run_id,
  d.phase, -- Phase; NULL in steps without one.
  d.what, -- mean layer for a bar of it, or layer.
  d.layer, -- The layer; NULL for a bar of the mean layer.
  d.class, -- What the bar's ops do, as in models.instruction_classes.
  d.part, -- Their part of the model; NULL if unknown.
  d.op, -- The one with the most time.
  -- What people call the bar.
  CASE d.class WHEN 'communication' THEN d.op WHEN 'attention' THEN d.class ELSE COALESCE(d.part, d.class) END AS name,
  d.ops, -- How many they are.
  d.place, -- Place of the bar in the order of execution, or the layer.
  d.self_us, -- Time of the bar, or of the layer.
  d.until_us - d.self_us AS begin_us, -- Where the bar begins.
  d.until_us, -- Where it ends.
  m.layers, -- Number of layers.
  m.median_us, -- Median time of a layer.
  CASE d.what WHEN 'layer' THEN d.self_us - m.median_us END AS difference_us, -- How far the layer is from it.
  a.is_alike -- Ops that nearly every layer has take at least 90 % of the time.
FROM drawn AS d
INNER JOIN medians AS m ON d.run_id = m.run_id AND d.phase IS NOT DISTINCT FROM m.phase
INNER JOIN alike AS a ON d.run_id = a.run_id AND d.phase IS NOT DISTINCT FROM a.phase;

CREATE MACRO macros.memory_over_time(run) AS TABLE WITH states AS (
  SELECT *
  FROM models.memory_states
  WHERE run_id = run
),

bounds AS (
  SELECT
    MIN(at_ps) AS first_ps,
    (MAX(at_ps) - MIN(at_ps)) // 400 + 1 AS stretch_ps,
    COUNT(DISTINCT host) AS hosts
  FROM states
)

SELECT
  -- The allocator: its name, or else device and its number on the host; the host before it where the run has several.
  CASE WHEN b.hosts > 1 THEN m.host || ' ' ELSE '' END
  || CASE WHEN TRY_CAST(m.allocator AS INTEGER) IS NULL THEN '' ELSE 'device ' END
  || COALESCE(m.allocator, 'unnamed') AS allocator,
  (m.at_ps - b.first_ps) // b.stretch_ps * b.stretch_ps AS at_ps, -- Start of the stretch, since the first allocation.
  MAX(m.used_bytes) AS used_bytes, -- Most bytes in use, allocated and reserved.
  MAX(m.capacity_bytes) AS capacity_bytes, -- Most bytes of the allocator; NULL where not known.
  COUNT(*) AS changes -- Allocations and releases.
FROM states AS m
CROSS JOIN bounds AS b
GROUP BY ALL;

CREATE MACRO macros.planned_runs(runs) AS TABLE WITH wanted AS (
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
    MIN(kernels) AS kernels
  FROM main.predictions
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

links AS (
  SELECT run_id, phase, fraction AS share
  FROM metrics.communication_fraction_v1
  WHERE LIST_CONTAINS(runs, run_id)
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
    COALESCE(l.share, 0) AS links_share,
    f.host_ms * m.steps / m.time_ms AS host_share,
    -- the bandwidth is that while the device is busy, and it is not while it waits for the host
    COALESCE(h.gbps / f.hbm_gbps, 0) * (1 - f.host_ms * m.steps / m.time_ms) AS hbm_share
  FROM metrics.mfu_v1 AS m
  INNER JOIN facts AS f USING (run_id)
  LEFT JOIN links AS l USING (run_id, phase)
  LEFT JOIN memories AS h USING (run_id, phase)
),

uses AS (
  SELECT
    run_id, phase, links_share, mfu,
    CASE
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
  run_id,
  w.name, -- Its name.
  w.model, -- Model or model family; unknown where neither is known.
  w.num_layers AS layers, -- Transformer layers of the whole model.
  f.compiled_layers, -- Layers that were compiled; the others repeat the steady one of them.
  w.dtype, -- Precision.
  f.topology, -- The slice.
  c.chips, -- Its chips.
  w.mesh, -- Mesh.
  w.batch_size, -- Sequences.
  w.input_length, -- Prompt tokens of a sequence.
  w.output_length, -- Generated tokens of a sequence.
  r.ttft_ms, -- Predicted time to first token, that of the host as given.
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
  f.memory_bytes <= f.capacity_bytes AS is_fitting, -- The whole model fits.
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
  f.kernels -- Times that were given for kernels.
FROM wanted AS w
INNER JOIN facts AS f USING (run_id)
LEFT JOIN ranges AS r USING (run_id)
LEFT JOIN requests AS q USING (run_id)
LEFT JOIN costs AS k USING (run_id)
LEFT JOIN phases AS p USING (run_id)
LEFT JOIN traffic AS t USING (run_id)
LEFT JOIN models.run_chips AS c USING (run_id);

CREATE MACRO macros.published_values(runs := NULL) AS TABLE WITH published AS (
  SELECT run_id, name, card -> '$.published' AS listed
  FROM main.runs
  WHERE runs IS NULL OR run_id IN (SELECT UNNEST(runs))
),

named AS (
  SELECT run_id, name, listed, UNNEST(JSON_KEYS(listed)) AS metric
  FROM published
)

SELECT run_id, name, metric, CAST(listed ->> metric AS DOUBLE) AS value
FROM named;

CREATE MACRO macros.roofline_points(run, most) AS TABLE WITH ops AS (
  SELECT name, category, bound, intensity, flops_per_s, self_us * executions / 1e3 AS self_ms, attained
  FROM metrics.roofline
  WHERE run_id = run AND flops_per_s > 0 AND intensity > 0
  QUALIFY ROW_NUMBER() OVER (ORDER BY self_us * executions DESC, instruction_id) <= most
),

ends AS (
  SELECT LEAST(MIN(intensity), 1) AS low, GREATEST(MAX(intensity), 1000) AS high
  FROM ops
  HAVING COUNT(*) > 0
),

peaks AS (
  SELECT MIN(peak_flops_per_s) AS flops, MIN(peak_hbm_gbps) * 1e9 AS bytes
  FROM main.devices
  WHERE run_id = run
),

roof AS (
  SELECT
    UNNEST([e.low, p.flops / p.bytes, GREATEST(e.high, 2 * p.flops / p.bytes)]) AS intensity, p.flops, p.bytes
  FROM ends AS e
  CROSS JOIN peaks AS p
  WHERE p.flops > 0 AND p.bytes > 0
)

SELECT
  'op' AS what, -- op, or roof.
  name, -- Name of the instruction.
  category, -- The profiler's category.
  bound, -- compute, memory or ici; NULL where the peak is not known.
  intensity, -- Operations per byte.
  flops_per_s, -- Rate of a device.
  self_ms, -- Self time on all devices; NULL for the roof.
  attained -- Share of the bound; NULL where it is not known.
FROM ops
UNION ALL
SELECT
  'roof' AS what, 'roof' AS name, NULL AS category, 'roof' AS bound, intensity,
  LEAST(flops, intensity * bytes) AS flops_per_s, NULL AS self_ms, NULL AS attained
FROM roof;

CREATE MACRO macros.run_facts(runs) AS TABLE WITH axes AS (
  SELECT
    run_id,
    STRING_AGG(COALESCE(axis, '?') || '=' || size, ',' ORDER BY "position") AS mesh,
    MIN(source) AS source,
    MIN(confidence) AS confidence
  FROM main.mesh_axes
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id
),

covered AS (
  SELECT run_id, MIN(value) AS layer_coverage
  FROM main.metric_values
  WHERE
    run_id IN (SELECT UNNEST(runs)) AND metric = 'layer_coverage'
    AND COALESCE(dimensions ->> '$.phase', '') <> 'outside'
  GROUP BY run_id
),

stepped AS (
  SELECT run_id, COUNT(DISTINCT step) AS steps, STRING_AGG(DISTINCT source, ', ' ORDER BY source) AS source
  FROM models.steps
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id
)

SELECT
  run_id, r.name, r.origin,
  COALESCE(r.model, r.model_family) AS model,
  r.num_layers AS layers,
  r.dtype, r.batch_size, r.input_length, r.output_length,
  COALESCE(r.mesh, a.mesh) AS mesh,
  CASE WHEN r.mesh IS NOT NULL THEN 'mesh' ELSE a.source END AS mesh_source,
  CASE WHEN r.mesh IS NOT NULL THEN 1.0 ELSE a.confidence END AS mesh_confidence,
  r.sequence_parallelism, r.backend,
  c.kind AS device_kind,
  r.device_count AS devices,
  c.chips,
  r.host_count AS hosts,
  COALESCE(s.steps, 0) AS steps,
  s.source AS steps_source,
  l.layer_coverage,
  r.framework,
  r.profile_start_ns AS captured_ns,
  r.event_count AS events
FROM main.runs AS r
LEFT JOIN models.run_chips AS c USING (run_id)
LEFT JOIN axes AS a USING (run_id)
LEFT JOIN stepped AS s USING (run_id)
LEFT JOIN covered AS l USING (run_id)
WHERE run_id IN (SELECT UNNEST(runs));

CREATE MACRO macros.run_points(runs) AS TABLE WITH wanted AS (
  SELECT
    run_id, name, origin,
    COALESCE(model, model_family, 'unknown') AS model,
    dtype,
    COALESCE(mesh, 'unknown') AS mesh,
    batch_size, input_length, output_length, profile_start_ns, framework,
    mesh AS recorded_mesh,
    backend, num_layers, num_params,
    host_count AS hosts
  FROM main.runs
  WHERE LIST_CONTAINS(runs, run_id)
),

latencies AS (
  SELECT
    run_id, metric,
    MIN(value) FILTER (WHERE dimensions ->> '$.clock' = 'host') AS host_ms,
    MIN(value) FILTER (WHERE dimensions ->> '$.clock' = 'device') AS device_ms
  FROM main.metric_values
  WHERE metric IN ('ttft', 'tpot') AND LIST_CONTAINS(runs, run_id)
  GROUP BY run_id, metric
),

clocked AS (
  SELECT
    v.run_id, v.metric,
    CASE WHEN l.run_id IS NULL THEN COALESCE(v.host_ms, v.device_ms) ELSE COALESCE(v.device_ms, v.host_ms) END AS ms
  FROM latencies AS v
  LEFT JOIN models.launched_runs AS l ON v.run_id = l.run_id
),

rates AS (
  SELECT run_id, MAX(value) AS tokens_per_s
  FROM main.metric_values
  WHERE metric = 'throughput' AND LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

points AS (
  SELECT
    run_id, r.name, r.origin,
    -- Factors of links and HBM, time of the host for a step, and of kernels in microseconds.
    NULLIF(
      CONCAT_WS(
        ', ',
        CASE WHEN w.ici_factor <> 1 THEN 'ICI x ' || w.ici_factor END,
        CASE WHEN w.hbm_factor <> 1 THEN 'HBM x ' || w.hbm_factor END,
        CASE WHEN w.host_ps <> 0 THEN 'host ' || (w.host_ps / 1e9) || ' ms' END,
        'kernels ' || w.kernels,
        'chip at ' || w.chip_price_usd_per_h || ' USD/h'
      ), ''
    ) AS what_if,
    r.model, r.dtype, r.mesh, r.batch_size, r.input_length, r.output_length,
    c.kind AS device_kind,
    c.chips, r.profile_start_ns, r.framework, r.num_layers, r.num_params,
    f.ms AS ttft_ms,
    t.ms AS tpot_ms,
    q.tokens_per_s,
    1e3 / t.ms AS tokens_per_s_per_user,
    q.tokens_per_s / c.chips AS tokens_per_s_per_chip
  FROM wanted AS r
  LEFT JOIN models.run_chips AS c USING (run_id)
  LEFT JOIN models.what_ifs AS w USING (run_id)
  LEFT JOIN clocked AS f ON r.run_id = f.run_id AND f.metric = 'ttft'
  LEFT JOIN clocked AS t ON r.run_id = t.run_id AND t.metric = 'tpot'
  LEFT JOIN rates AS q USING (run_id)
),

axes AS (
  SELECT run_id, STRING_AGG(COALESCE(axis, '?') || '=' || size, ',' ORDER BY "position") AS mesh
  FROM main.mesh_axes
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

flagged AS (
  SELECT run_id, LIST_SORT(LIST_DISTINCT(LIST(flag))) AS flags
  FROM main.quality_flags
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

beaten AS (
  SELECT p.run_id, TRUE AS is_beaten
  FROM points AS p
  INNER JOIN points AS b
    ON
      p.model = b.model AND p.origin = b.origin AND p.what_if IS NOT DISTINCT FROM b.what_if
      AND p.num_layers IS NOT DISTINCT FROM b.num_layers
      AND p.num_params IS NOT DISTINCT FROM b.num_params
      AND p.tokens_per_s_per_user <= b.tokens_per_s_per_user
      AND p.tokens_per_s_per_chip <= b.tokens_per_s_per_chip
      AND (
        p.tokens_per_s_per_user < b.tokens_per_s_per_user OR p.tokens_per_s_per_chip < b.tokens_per_s_per_chip
      )
  GROUP BY p.run_id
)

SELECT
  run_id,
  p.name, -- Its name.
  p.origin, -- Where its times come from: recorded, predicted or compiled.
  p.model, -- Model or model family; unknown where neither is known.
  -- The model as a chart names a series of runs: predicted runs are a series of their own.
  CASE WHEN p.origin = 'predicted' THEN p.model || ', predicted' || COALESCE(', ' || p.what_if, '') ELSE p.model END
    AS series,
  p.num_layers AS layers, -- Transformer layers.
  p.dtype, -- Precision.
  p.mesh, -- Mesh; unknown where it is not known.
  p.batch_size, -- Sequences per step.
  p.input_length, -- Prompt tokens of a sequence.
  p.output_length, -- Generated tokens of a sequence.
  p.device_kind, -- Kind of the devices.
  p.chips, -- Chips of the run, those outside the capture included.
  p.profile_start_ns, -- Start of the capture, Unix time.
  p.framework, -- What ran the model, with its version.
  p.ttft_ms, -- Time to first token.
  p.tpot_ms, -- Time per output token.
  p.tokens_per_s, -- Output tokens of all sequences per second.
  p.tokens_per_s_per_user, -- Output tokens of one sequence per second, 1000 / tpot_ms.
  p.tokens_per_s_per_chip, -- tokens_per_s / chips.
  -- On the Pareto front; NULL where one of its two rates is not known.
  CASE
    WHEN p.tokens_per_s_per_user IS NOT NULL AND p.tokens_per_s_per_chip IS NOT NULL THEN b.is_beaten IS NULL
  END AS is_on_front,
  COALESCE(w.recorded_mesh, a.mesh) AS axes, -- Mesh, or else the inferred axes and sizes; an axis without a name is '?'.
  w.backend, -- tpu, gpu, cpu (virtual devices) or unknown.
  w.hosts, -- Hosts in the capture.
  COALESCE(f.flags, []) AS flags -- Quality flags of the run.
FROM points AS p
INNER JOIN wanted AS w USING (run_id)
LEFT JOIN beaten AS b USING (run_id)
LEFT JOIN axes AS a USING (run_id)
LEFT JOIN flagged AS f USING (run_id);

CREATE MACRO macros.step_shares(runs) AS TABLE WITH summed AS (
  SELECT
    run_id, phase, part, position,
    SUM(time_ps) AS time_ps,
    SUM(mean_ms ORDER BY mean_ms) / COUNT(*) AS mean_ms,
    COUNT(*) AS steps
  FROM models.step_parts
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id, phase, part, position
  HAVING SUM(time_ps) > 0
)

SELECT
  run_id,
  COALESCE(phase, '') AS phase,
  part, position,
  time_ps / NULLIF(SUM(time_ps) OVER (PARTITION BY run_id, phase), 0) AS share,
  mean_ms, steps
FROM summed;

CREATE MACRO macros.run_values(runs) AS TABLE WITH stored AS (
  SELECT *
  FROM main.metric_values
  WHERE LIST_CONTAINS(runs, run_id)
)

SELECT
  run_id, -- The run.
  r.name, -- Its name.
  COALESCE(r.model, r.model_family, 'unknown') AS model, -- Model or model family; unknown where neither is known.
  r.mesh, -- Mesh; NULL where it is not known.
  r.batch_size, -- Sequences per step.
  COALESCE(r.framework, 'unknown') AS framework, -- What ran the model, with its version; unknown where it is not known.
  r.profile_start_ns, -- Start of the capture, Unix time.
  v.metric, -- The metric.
  v.version, -- Its version.
  v.dimensions ->> '$.phase' AS phase, -- Phase; NULL without one, and for a metric without phases.
  v.dimensions ->> '$.clock' AS clock, -- The clock, host or device; NULL for a metric of no clock.
  v.dimensions ->> '$.factor' AS factor, -- How many times the bandwidth of today's links; NULL for a metric without.
  v.value, -- The value.
  v.unit -- Its unit.
FROM stored AS v
INNER JOIN main.runs AS r USING (run_id);

CREATE MACRO macros.speedups(runs) AS TABLE WITH stored AS (
  SELECT
    run_id, metric,
    dimensions ->> '$.phase' AS phase,
    COALESCE(dimensions ->> '$.link', dimensions ->> '$.resource', 'unknown') AS resource,
    dimensions ->> '$.axis' AS axis,
    dimensions ->> '$.factor' AS factor,
    SUM("value" ORDER BY "value") / 100 AS saved,
    BOOL_OR(dimensions ->> '$.basis' IS DISTINCT FROM 'fit') AS is_upper_bound
  FROM main.metric_values
  WHERE metric IN ('faster_links', 'faster_chips') AND LIST_CONTAINS(runs, run_id)
  GROUP BY ALL
)

SELECT
  run_id,
  metric, -- faster_links or faster_chips.
  phase,
  -- What is faster: links of a class, HBM, or matrix units.
  CASE resource
    WHEN 'hbm' THEN 'HBM'
    WHEN 'compute' THEN 'matrix units'
    WHEN 'unknown' THEN 'links'
    WHEN 'ici' THEN 'ICI links'
    WHEN 'dcn' THEN 'DCN links'
    WHEN 'die' THEN 'links of the die'
    WHEN 'nvlink' THEN 'NVLink'
    WHEN 'fabric' THEN 'Infinity Fabric'
    ELSE resource
  END AS resource,
  axis, -- Mesh axes of the collectives over the links; NULL for HBM and matrix units.
  factor, -- How many times faster: 2, 4 or infinite.
  saved, -- Share of the phase's time.
  is_upper_bound -- The share is an upper bound; false where a fit of the links tells the share itself.
FROM stored;

CREATE MACRO macros.timeline_bars(run, begin_ps, finish_ps, most) AS TABLE WITH inside AS (
  SELECT run_id, device_id, instruction_id, iteration, start_ps, start_ps + duration_ps AS end_ps, idle_before_ps
  FROM main.ops
  WHERE
    run_id = run AND is_leaf AND device_id IS NOT NULL AND start_ps - COALESCE(idle_before_ps, 0) < finish_ps
    AND start_ps + duration_ps > begin_ps
),

shown AS (
  SELECT *
  FROM inside
  QUALIFY DENSE_RANK() OVER (ORDER BY device_id) <= most
),

ops AS (
  SELECT
    o.device_id, o.start_ps, o.end_ps, o.idle_before_ps, i.name, i.part, c.class,
    CASE
      WHEN l.layers_per_iteration IS NULL THEN l.first_layer
      ELSE l.first_layer + o.iteration * l.layers_per_iteration
    END AS layer
  FROM shown AS o
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  INNER JOIN models.instruction_classes AS c USING (run_id, instruction_id)
  LEFT JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id)
),

followed AS (
  SELECT
    *,
    ROW_NUMBER() OVER (ORDER BY start_ps, end_ps, name) AS place,
    LAG(layer) OVER (ORDER BY start_ps, end_ps, name) AS layer_before,
    LAG(part) OVER (ORDER BY start_ps, end_ps, name) AS part_before
  FROM (
    SELECT *
    FROM ops
    QUALIFY DENSE_RANK() OVER (ORDER BY device_id) = 1
  ) AS first_device
  WHERE part IS NOT NULL OR layer IS NOT NULL
),

stretches AS (
  SELECT
    *,
    COUNT(*) FILTER (
      WHERE layer IS DISTINCT FROM layer_before OR part IS DISTINCT FROM part_before
    ) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS stretch
  FROM followed
),

bars AS (
  SELECT
    device_id,
    CASE class WHEN 'communication' THEN class ELSE 'core' END AS lane,
    class,
    name AS op,
    layer, part, start_ps, end_ps
  FROM ops
  WHERE start_ps < finish_ps
  UNION ALL
  SELECT
    device_id,
    'core' AS lane,
    'idle' AS class,
    NULL AS op,
    NULL AS layer,
    NULL AS part,
    start_ps - idle_before_ps AS start_ps,
    start_ps AS end_ps
  FROM ops
  WHERE idle_before_ps * 1000 >= finish_ps - begin_ps AND start_ps > begin_ps
  UNION ALL
  SELECT
    device_id,
    'communication' AS lane,
    'window' AS class,
    kind AS op,
    NULL AS layer,
    NULL AS part,
    start_ps, end_ps
  FROM main.collectives
  WHERE
    run_id = run AND is_async AND start_ps < finish_ps AND end_ps > begin_ps
    AND device_id IN (SELECT s.device_id FROM shown AS s)
  UNION ALL
  SELECT
    MIN(device_id) AS device_id,
    'layer' AS lane,
    NULL AS class,
    CONCAT_WS(' ', 'layer ' || MIN(layer), MIN(part)) AS op,
    MIN(layer) AS layer,
    MIN(part) AS part,
    MIN(start_ps) AS start_ps,
    MAX(end_ps) AS end_ps
  FROM stretches
  WHERE start_ps < finish_ps
  GROUP BY stretch
)

SELECT
  device_id, -- The device.
  lane, -- core, communication, or layer.
  -- As in models.instruction_classes, or idle, or window for that of an asynchronous collective; NULL in the lane layer.
  class,
  op, -- Name of the instruction, kind of the collective, or layer and part of the model; NULL for idle time.
  layer, -- Transformer layer; NULL if unknown.
  part, -- Part of the model; NULL if unknown.
  GREATEST(start_ps - begin_ps, 0) / 1e9 AS start_ms, -- Start in the window.
  (LEAST(end_ps, finish_ps) - begin_ps) / 1e9 AS end_ms, -- End in the window.
  (end_ps - start_ps) / 1e6 AS duration_us -- Its whole duration, with what lies outside the window.
FROM bars;

CREATE MACRO macros.timeline_collectives(run, device, from_ps, until_ps) AS TABLE SELECT
  kind, -- Kind of collective.
  axis, -- Mesh axis.
  COUNT(*) AS executions, -- Executions that overlap the window.
  SUM(message_bytes) AS message_bytes, -- Bytes of their messages.
  SUM(LEAST(end_ps, until_ps) - GREATEST(start_ps, from_ps)) / 1e6 AS time_us -- Their time in the window.
FROM main.collectives
WHERE run_id = run AND device_id = device AND start_ps < until_ps AND end_ps > from_ps
GROUP BY kind, axis;

CREATE MACRO macros.timeline_ops(run, device, from_ps, until_ps) AS TABLE SELECT
  name AS op, -- Name of the instruction.
  op_class, -- communication, copy or compute.
  category, -- The profiler's category.
  COUNT(*) AS executions, -- Executions that overlap the window.
  -- Time in the window. The time that an op adds to earlier ones is the end of its duration.
  SUM(LEAST(end_ps, until_ps) - GREATEST(end_ps - busy_ps, from_ps)) / 1e6 AS time_us,
  -- Its share of the window.
  SUM(LEAST(end_ps, until_ps) - GREATEST(end_ps - busy_ps, from_ps)) / (until_ps - from_ps) AS share_of_window
FROM models.leaf_ops
WHERE run_id = run AND device_id = device AND start_ps < until_ps AND end_ps > from_ps
GROUP BY name, op_class, category;

CREATE MACRO macros.timeline_slices(run, device, from_ps, until_ps, slice_ps) AS TABLE WITH inside AS (
  SELECT
    name,
    op_class,
    -- the time that an op adds to earlier ones is the end of its duration, so these stretches do not overlap
    GREATEST(end_ps - busy_ps, from_ps) AS begin_ps,
    LEAST(end_ps, until_ps) AS end_ps
  FROM models.leaf_ops
  WHERE run_id = run AND device_id = device AND start_ps < until_ps AND end_ps > from_ps
),

sliced AS (
  SELECT
    *,
    UNNEST(RANGE((begin_ps - from_ps) // slice_ps, (end_ps - 1 - from_ps) // slice_ps + 1)) AS slice
  FROM inside
  WHERE end_ps > begin_ps
),

timed AS (
  SELECT
    slice,
    name,
    op_class,
    SUM(LEAST(end_ps, from_ps + (slice + 1) * slice_ps) - GREATEST(begin_ps, from_ps + slice * slice_ps)) AS time_ps
  FROM sliced
  GROUP BY slice, name, op_class
),

summed AS (
  SELECT
    slice,
    SUM(time_ps) AS busy_ps,
    SUM(time_ps) FILTER (WHERE op_class = 'compute') AS compute_ps,
    SUM(time_ps) FILTER (WHERE op_class = 'communication') AS communication_ps,
    SUM(time_ps) FILTER (WHERE op_class = 'copy') AS copy_ps,
    ARG_MAX(name, (time_ps, name)) AS largest_op
  FROM timed
  GROUP BY slice
),

slices AS (
  SELECT
    slice,
    from_ps + slice * slice_ps AS start_ps,
    LEAST(from_ps + (slice + 1) * slice_ps, until_ps) AS end_ps
  FROM UNNEST(RANGE(0, (until_ps - from_ps + slice_ps - 1) // slice_ps)) AS numbers (slice)
)

SELECT
  s.start_ps / 1e9 AS start_ms, -- Start of the slice, since the profile start.
  s.end_ps / 1e9 AS until_ms, -- Its end.
  COALESCE(b.compute_ps, 0) / 1e6 AS compute_us, -- Time of compute.
  COALESCE(b.communication_ps, 0) / 1e6 AS communication_us, -- Time of communication.
  COALESCE(b.copy_ps, 0) / 1e6 AS copy_us, -- Time of copies.
  (s.end_ps - s.start_ps - COALESCE(b.busy_ps, 0)) / 1e6 AS idle_us, -- Time without an op.
  b.largest_op -- The instruction with the most time in the slice; NULL where the device is idle.
FROM slices AS s
LEFT JOIN summed AS b USING (slice);

CREATE MACRO macros.timeline_stretches(run, begin_ps, finish_ps, stretch_ps) AS TABLE WITH placed AS (
  SELECT run_id, instruction_id, device_id, (start_ps - begin_ps) // stretch_ps AS stretch, duration_ps
  FROM main.ops
  WHERE run_id = run AND is_leaf AND device_id IS NOT NULL AND start_ps >= begin_ps AND start_ps < finish_ps
),

timed AS (
  SELECT
    p.device_id,
    CASE c.class WHEN 'communication' THEN c.class ELSE 'core' END AS lane,
    p.stretch, c.class,
    SUM(p.duration_ps) AS time_ps
  FROM placed AS p
  INNER JOIN models.instruction_classes AS c USING (run_id, instruction_id)
  GROUP BY ALL
),

largest AS (
  SELECT *
  FROM timed
  QUALIFY ROW_NUMBER() OVER (PARTITION BY device_id, lane, stretch ORDER BY time_ps DESC, class) = 1
),

numbered AS (
  SELECT *, stretch - ROW_NUMBER() OVER (PARTITION BY device_id, class ORDER BY stretch) AS series
  FROM largest
)

SELECT
  device_id, -- The device.
  lane, -- core or communication.
  MIN(stretch) * stretch_ps / 1e9 AS start_ms, -- Start of the first stretch, since the start of the window.
  (MAX(stretch) + 1) * stretch_ps / 1e9 AS end_ms, -- End of the last stretch.
  class, -- The class, as in models.instruction_classes.
  COUNT(*) AS stretches, -- Number of stretches.
  SUM(time_ps) / 1e6 AS duration_us -- Time of the ops of the class.
FROM numbered
GROUP BY device_id, lane, class, series;

CREATE MACRO macros.timeline_window(run) AS TABLE WITH steps AS (
  SELECT
    step, phase, start_ps, longest_ps, is_timed,
    SUM(longest_ps) OVER (PARTITION BY phase) AS phase_ps,
    LEAD(step) OVER (ORDER BY start_ps, step) AS next_step
  FROM models.run_steps
  WHERE run_id = run
),

ranked AS (
  SELECT
    step, phase, next_step,
    ROW_NUMBER() OVER (ORDER BY longest_ps, step) AS place,
    COUNT(*) OVER () AS steps
  FROM (
    SELECT *
    FROM steps
    QUALIFY DENSE_RANK() OVER (ORDER BY phase_ps DESC, phase, is_timed DESC) = 1
  ) AS longest
),

typical AS (
  SELECT step, phase, next_step
  FROM ranked
  WHERE place = (steps + 1) // 2
),

ops AS (
  SELECT run_id, device_id, instruction_id, iteration, step, start_ps, start_ps + duration_ps AS end_ps
  FROM main.ops
  WHERE run_id = run AND is_leaf AND device_id IS NOT NULL
),

layers AS (
  SELECT
    o.device_id,
    CASE
      WHEN l.layers_per_iteration IS NULL THEN l.first_layer
      ELSE l.first_layer + o.iteration * l.layers_per_iteration
    END AS layer,
    MIN(o.start_ps) AS start_ps,
    MAX(o.end_ps) AS end_ps
  FROM ops AS o
  INNER JOIN typical AS t ON o.step = t.step
  INNER JOIN models.instruction_layers AS l USING (run_id, instruction_id, device_id)
  WHERE l.first_layer IS NOT NULL
  GROUP BY ALL
),

pairs AS (
  SELECT
    layer, start_ps, next_end_ps AS end_ps,
    ROW_NUMBER() OVER (ORDER BY layer) AS place,
    COUNT(*) OVER () AS pairs
  FROM (
    SELECT
      *,
      LEAD(layer) OVER (PARTITION BY device_id ORDER BY layer) AS next_layer,
      LEAD(end_ps) OVER (PARTITION BY device_id ORDER BY layer) AS next_end_ps
    FROM layers
    QUALIFY DENSE_RANK() OVER (ORDER BY device_id) = 1
  ) AS followed
  WHERE next_layer = layer + 1
),

windows AS (
  SELECT 0 AS choice, t.step, t.next_step, t.phase, p.layer, p.start_ps AS begin_ps, p.end_ps AS finish_ps
  FROM pairs AS p
  CROSS JOIN typical AS t
  WHERE p.place = (p.pairs + 1) // 2
  UNION ALL
  SELECT
    1 AS choice,
    t.step, t.next_step, t.phase,
    NULL AS layer,
    MIN(o.start_ps) AS begin_ps,
    MAX(o.end_ps) AS finish_ps
  FROM ops AS o
  INNER JOIN typical AS t ON o.step IN (t.step, t.next_step)
  GROUP BY t.step, t.next_step, t.phase
  UNION ALL
  SELECT
    2 AS choice,
    NULL AS step,
    NULL AS next_step,
    NULL AS phase,
    NULL AS layer,
    MIN(start_ps) AS begin_ps,
    MAX(end_ps) AS finish_ps
  FROM ops
  HAVING COUNT(*) > 0
)

SELECT
  begin_ps, -- Start of the window.
  finish_ps, -- Its end, exclusive.
  layer, -- The first of two layers; NULL without layers.
  step, -- The typical step; NULL without steps.
  CASE WHEN layer IS NULL THEN next_step END AS next_step, -- The step after it, if the window has both.
  phase -- Phase of the step; NULL for none.
FROM windows
QUALIFY ROW_NUMBER() OVER (ORDER BY choice) = 1;

CREATE MACRO macros.top_categories(run, most) AS TABLE WITH shares AS (
  SELECT
    phase,
    COALESCE(category, 'unnamed') AS category,
    share,
    ops,
    MAX(share) OVER (PARTITION BY category) AS top_share
  FROM metrics.op_time_share
  WHERE run_id = run
)

SELECT
  phase,
  category, -- The profiler's category of the ops, or unnamed.
  share, -- Share of the phase's op time.
  ops, -- Number of ops.
  top_share -- Largest share over the phases.
FROM shares
QUALIFY DENSE_RANK() OVER (ORDER BY top_share DESC, category) <= most;

CREATE MACRO macros.top_ops(run, most) AS TABLE WITH timed AS (
  SELECT *
  FROM models.instruction_time
  WHERE run_id = run
),

named AS (
  SELECT
    t.phase,
    REGEXP_REPLACE(i.name, '([.][0-9]+)+$', '') AS op,
    c.class,
    i.category,
    t.part,
    t.layer,
    i.source,
    instruction_id,
    t.ops,
    t.self_ps
  FROM timed AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  INNER JOIN models.instruction_classes AS c USING (run_id, instruction_id)
),

summed AS (
  SELECT
    phase,
    op,
    class,
    ANY_VALUE(category) AS category,
    STRING_AGG(DISTINCT part, ', ' ORDER BY part) AS parts,
    CASE
      WHEN MIN(layer) < MAX(layer) THEN MIN(layer) || ' to ' || MAX(layer)
      ELSE CAST(MIN(layer) AS VARCHAR)
    END AS layers,
    MIN(source) AS source,
    COUNT(DISTINCT instruction_id) AS instructions,
    CAST(SUM(ops) AS BIGINT) AS executions,
    SUM(self_ps) / 1e9 AS self_ms
  FROM named
  GROUP BY phase, op, class
)

SELECT
  phase, -- Phase; NULL in a step without one, outside before the first and after the last.
  op, -- Name of the op, without the numbers at its end.
  class, -- Its class, as in models.instruction_classes.
  category, -- The profiler's category of one of its instructions.
  parts, -- Parts of the model.
  layers, -- The layer, or the first and the last.
  source, -- A source line.
  instructions, -- HLO instructions.
  executions, -- Executions on all devices.
  self_ms, -- Self time on all devices.
  self_ms / SUM(self_ms) OVER (PARTITION BY phase) AS share -- Share of the phase's self time.
FROM summed
QUALIFY ROW_NUMBER() OVER (PARTITION BY phase ORDER BY self_ms DESC, op) <= most;

CREATE MACRO macros.collectives_in_flight(run, from_ps, until_ps, only_phase, first_step, last_step) AS TABLE WITH ranks AS (
  SELECT COALESCE(instance, -1 - event_id) AS instance, start_ps, end_ps, COALESCE(wire_bytes, 0) AS bytes
  FROM macros.selected_collectives(run, from_ps, until_ps, only_phase, first_step, last_step)
),

changes AS (
  SELECT MIN(start_ps) AS at_ps, 1 AS collectives, 0 AS bytes
  FROM ranks
  GROUP BY instance
  UNION ALL
  SELECT MAX(end_ps) AS at_ps, -1 AS collectives, 0 AS bytes
  FROM ranks
  GROUP BY instance
  UNION ALL
  SELECT start_ps AS at_ps, 0 AS collectives, bytes
  FROM ranks
  UNION ALL
  SELECT end_ps AS at_ps, 0 AS collectives, -bytes AS bytes
  FROM ranks
),

moments AS (
  SELECT at_ps, SUM(collectives) AS collectives, SUM(bytes) AS bytes
  FROM changes
  GROUP BY at_ps
)

SELECT
  at_ps, -- The moment.
  CAST(SUM(collectives) OVER (ORDER BY at_ps) AS BIGINT) AS collectives, -- Collectives in flight from then on.
  CAST(SUM(bytes) OVER (ORDER BY at_ps) AS BIGINT) AS bytes -- Bytes that their ranks send.
FROM moments;

CREATE MACRO macros.step_changes(runs, baselines, by_split, most) AS TABLE WITH differences AS (
  SELECT
    phase, name, baseline_us, value_us, difference_us,
    LEAST(ROW_NUMBER() OVER (PARTITION BY phase ORDER BY ABS(difference_us) DESC, name), most + 1) AS place
  FROM macros.compare_steps(runs, baselines)
  WHERE split = by_split AND difference_us IS NOT NULL
)

SELECT
  phase,
  place, -- Position, from 1.
  CASE WHEN place > most AND COUNT(*) > 1 THEN 'others' ELSE MIN(name) END AS name, -- What differs, or others.
  SUM(baseline_us) AS baseline_us, -- Its time in a step of the baselines.
  SUM(value_us) AS value_us, -- Its time in a step of the runs.
  SUM(difference_us) AS difference_us -- value_us - baseline_us.
FROM differences
GROUP BY phase, place;

CREATE MACRO macros.scaling_points(runs) AS TABLE WITH points AS (
  SELECT *
  FROM macros.run_points(runs)
  WHERE tokens_per_s IS NOT NULL AND chips IS NOT NULL
),

placed AS (
  SELECT
    p.series || ', batch ' || p.batch_size || ', ' || p.input_length || ' in, ' || p.output_length || ' out' AS named,
    p.device_kind, p.chips, p.tokens_per_s, p.mesh,
    DENSE_RANK() OVER (
      ORDER BY
        r.model, r.model_family, r.num_layers, r.hidden_size, r.num_heads, r.head_dim, r.vocab_size,
        r.num_params, r.num_params_active, r.num_params_embedding, r.has_tied_embeddings, r.capacity_factor, r.dtype,
        r.batch_size, r.input_length, r.output_length, r.framework, r.backend, r.origin,
        w.ici_factor, w.hbm_factor, w.host_ps, w.kernels
    ) AS work
  FROM points AS p
  INNER JOIN main.runs AS r USING (run_id)
  LEFT JOIN models.what_ifs AS w USING (run_id)
),

best AS (
  SELECT
    named, work, device_kind, chips,
    MAX(tokens_per_s) AS tokens_per_s,
    ARG_MAX(mesh, tokens_per_s) AS mesh
  FROM placed
  GROUP BY named, work, device_kind, chips
),

scaled AS (
  SELECT
    *,
    FIRST_VALUE(tokens_per_s / chips) OVER (PARTITION BY work, device_kind ORDER BY chips) * chips
      AS linear_tokens_per_s
  FROM best
  QUALIFY COUNT(*) OVER (PARTITION BY work, device_kind) > 1
),

numbered AS (
  SELECT *, DENSE_RANK() OVER (PARTITION BY named ORDER BY work) AS place
  FROM scaled
)

SELECT
  -- Model, batch and lengths; with a number where these are of several workloads.
  CASE WHEN MAX(place) OVER (PARTITION BY named) > 1 THEN named || ' (' || place || ')' ELSE named END AS workload,
  device_kind, -- Kind of the devices.
  chips, -- Chips of the run.
  tokens_per_s, -- Output tokens of all sequences per second.
  mesh, -- Mesh of the run.
  linear_tokens_per_s -- Output tokens per second if each chip gave as many as on the fewest chips.
FROM numbered;

CREATE MACRO macros.study_points(runs) AS TABLE WITH ran AS (
  SELECT *
  FROM macros.run_points(runs)
),

predicted AS (
  SELECT
    run_id,
    MAX(argument_bytes + output_bytes + temporary_bytes + program_bytes) AS memory_bytes,
    MIN(capacity_bytes) AS capacity_bytes,
    MIN(ici_factor) AS ici_factor,
    MIN(hbm_factor) AS hbm_factor,
    MIN(host_ps) AS host_ps,
    MIN(kernels) AS kernels,
    MIN(chip_price_usd_per_h) AS chip_price_usd_per_h
  FROM main.predictions
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

points AS (
  SELECT
    p.*,
    m.memory_bytes, m.capacity_bytes,
    CASE WHEN m.ici_factor <> 1 THEN ', links x ' || m.ici_factor ELSE '' END
    || CASE WHEN m.hbm_factor <> 1 THEN ', HBM x ' || m.hbm_factor ELSE '' END
    || COALESCE(', chip at ' || m.chip_price_usd_per_h || ' USD/h', '') AS what_if,
    DENSE_RANK() OVER (
      ORDER BY
        p.series, p.layers, r.num_params, p.input_length, p.output_length, p.backend, p.origin, m.ici_factor,
        m.hbm_factor, m.host_ps, m.kernels, m.chip_price_usd_per_h
    ) AS work
  FROM ran AS p
  INNER JOIN main.runs AS r USING (run_id)
  LEFT JOIN predicted AS m USING (run_id)
),

ranges AS (
  SELECT
    run_id,
    MIN(low_ms + host_ms) FILTER (WHERE phase = 'prefill') AS ttft_low_ms,
    MIN(high_ms + host_ms) FILTER (WHERE phase = 'prefill') AS ttft_high_ms,
    MIN(low_ms + host_ms) FILTER (WHERE phase = 'decode') AS tpot_low_ms,
    MIN(high_ms + host_ms) FILTER (WHERE phase = 'decode') AS tpot_high_ms
  FROM metrics.prediction_range_v1
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

prices AS (
  SELECT
    run_id,
    CASE
      WHEN COUNT(chip_price_usd_per_h) = COUNT(*) AND MIN(chip_price_usd_per_h) = MAX(chip_price_usd_per_h)
        THEN MIN(chip_price_usd_per_h)
    END AS usd_per_h
  FROM main.devices
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

-- what differs inside of a workload
differing AS (
  SELECT
    work,
    COUNT(DISTINCT batch_size) > 1 AS has_batches,
    COUNT(DISTINCT dtype) > 1 AS has_dtypes,
    COUNT(DISTINCT device_kind) > 1 AS has_kinds,
    COUNT(DISTINCT chips) > 1 AS has_chips
  FROM points
  GROUP BY work
),

told AS (
  SELECT
    p.*,
    p.mesh
    || CASE WHEN d.has_batches THEN COALESCE(', batch ' || p.batch_size, '') ELSE '' END
    || CASE WHEN d.has_dtypes THEN COALESCE(', ' || p.dtype, '') ELSE '' END
    || CASE
      WHEN d.has_kinds THEN COALESCE(', ' || p.chips || ' x ' || p.device_kind, '')
      WHEN d.has_chips THEN COALESCE(', ' || p.chips || ' chips', '')
      ELSE ''
    END AS said,
    p.series || COALESCE(', ' || p.layers || ' layers', '') || COALESCE(', ' || p.input_length || ' in', '')
    || COALESCE(', ' || p.output_length || ' out', '') || COALESCE(p.what_if, '') AS workload
  FROM points AS p
  INNER JOIN differing AS d USING (work)
),

named AS (
  SELECT
    *,
    CASE WHEN COUNT(*) OVER (PARTITION BY work, said) > 1 OR mesh = 'unknown' THEN name ELSE said END AS configuration,
    MAX(work) OVER (PARTITION BY workload) > MIN(work) OVER (PARTITION BY workload) AS is_shared_name,
    MAX(work) OVER () > 1 AS has_works
  FROM told
),

rivals AS (
  SELECT work, run_id, tokens_per_s_per_user, tokens_per_s_per_chip
  FROM points
  WHERE memory_bytes IS NULL OR capacity_bytes IS NULL OR memory_bytes <= capacity_bytes
),

beaten AS (
  SELECT p.run_id, TRUE AS is_beaten
  FROM rivals AS p
  INNER JOIN rivals AS b
    ON
      p.work = b.work
      AND p.tokens_per_s_per_user <= b.tokens_per_s_per_user
      AND p.tokens_per_s_per_chip <= b.tokens_per_s_per_chip
      AND (
        p.tokens_per_s_per_user < b.tokens_per_s_per_user OR p.tokens_per_s_per_chip < b.tokens_per_s_per_chip
      )
  GROUP BY p.run_id
)

SELECT
  run_id, n.name,
  n.origin, -- Where its times come from: recorded, predicted or compiled.
  n.model, -- Model or model family; unknown where neither is known.
  n.mesh, -- Mesh; unknown where it is not known.
  -- Model, layers and lengths, with a number where several workloads share these; predicted runs say so.
  CASE WHEN n.is_shared_name THEN n.workload || ' (' || n.work || ')' ELSE n.workload END AS workload,
  -- What tells the run from the others of its workload: mesh, and batch, precision and chips where they differ.
  n.configuration,
  -- The configuration, after its model where the study has several workloads; a name of a run stands alone.
  CASE WHEN n.has_works AND n.configuration <> n.name THEN n.series || ' ' || n.configuration ELSE n.configuration END
    AS label,
  -- Position in the workload, by throughput per chip; without prefill by that of decode.
  ROW_NUMBER() OVER (
    PARTITION BY n.work
    ORDER BY
      n.tokens_per_s_per_chip DESC NULLS LAST,
      n.tokens_per_s_per_user * n.batch_size / n.chips DESC NULLS LAST,
      n.name,
      run_id
  ) AS place,
  n.layers, -- Transformer layers.
  n.batch_size, -- Sequences per step.
  n.backend, -- tpu, gpu, cpu (virtual devices) or unknown.
  n.device_kind, -- Kind of the devices.
  n.chips, -- Chips of the run.
  n.ttft_ms, -- Time to first token.
  g.ttft_low_ms, -- Low end of its range, of a predicted run.
  g.ttft_high_ms, -- High end.
  n.tpot_ms, -- Time per output token.
  n.tokens_per_s_per_user, -- Output tokens of one sequence per second, 1000 / tpot_ms.
  1e3 / g.tpot_high_ms AS user_low, -- Low end of its range.
  1e3 / g.tpot_low_ms AS user_high, -- High end.
  n.tokens_per_s_per_chip, -- Output tokens of all sequences per second and chip.
  n.batch_size * n.output_length * 1e3
  / ((g.ttft_high_ms + (n.output_length - 1) * g.tpot_high_ms) * n.chips) AS chip_low, -- Low end of its range.
  n.batch_size * n.output_length * 1e3
  / ((g.ttft_low_ms + (n.output_length - 1) * g.tpot_low_ms) * n.chips) AS chip_high, -- High end.
  -- Price of a million output tokens with their prompts, at tokens_per_s_per_chip; NULL if a chip's price is unknown.
  c.usd_per_h * 1e6 / (3.6e3 * n.tokens_per_s_per_chip) AS usd_per_million_tokens,
  c.usd_per_h AS usd_per_chip_hour, -- Price of a chip for an hour; NULL if unknown.
  n.memory_bytes, -- Memory that a predicted run needs on a device.
  n.capacity_bytes, -- Memory that the device has.
  n.memory_bytes <= n.capacity_bytes AS is_fitting, -- NULL where the two are not known, as of recorded runs.
  -- No other run of the workload that fits is better in one of the two rates and at least as good in the other; NULL
  -- where one of them is not known, or the run does not fit.
  CASE
    WHEN n.tokens_per_s_per_user IS NOT NULL AND n.tokens_per_s_per_chip IS NOT NULL AND v.run_id IS NOT NULL
      THEN b.is_beaten IS NULL
  END AS is_on_front
FROM named AS n
LEFT JOIN ranges AS g USING (run_id)
LEFT JOIN prices AS c USING (run_id)
LEFT JOIN rivals AS v USING (run_id)
LEFT JOIN beaten AS b USING (run_id);

CREATE MACRO macros.run_tiles(runs) AS TABLE WITH numbers (position, metric, name) AS (
  VALUES
  (0, 'ttft', 'TTFT'),
  (1, 'tpot', 'TPOT'),
  (2, 'throughput', 'Throughput'),
  (3, 'step_time', 'Step time'),
  (4, 'mfu', 'MFU'),
  (5, 'hbm_bandwidth', 'Memory bandwidth'),
  (6, 'device_idle', 'Device idle'),
  (7, 'exposed_communication', 'Exposed communication'),
  (8, 'collective_count', 'Collectives per step'),
  (9, 'traffic_volume', 'Traffic per step')
),

shares AS (
  SELECT run_id, NULLIF(phase, '') AS phase, part, share, mean_ms, steps
  FROM macros.step_shares(runs)
),

stepped AS (
  SELECT
    run_id, phase,
    SUM(mean_ms ORDER BY mean_ms) AS step_ms,
    MAX(steps) AS steps,
    COALESCE(SUM(share) FILTER (WHERE part = 'idle'), 0) AS idle,
    COALESCE(SUM(mean_ms) FILTER (WHERE part = 'exposed communication'), 0) AS exposed_ms
  FROM shares
  GROUP BY run_id, phase
),

timed AS (
  SELECT
    run_id, phase,
    SUM(step_time_ms ORDER BY step_time_ms) / COUNT(step_time_ms) AS step_ms,
    COUNT(step_time_ms) AS steps
  FROM metrics.step_time
  WHERE run_id IN (SELECT UNNEST(runs)) AND step_time_ms IS NOT NULL
  GROUP BY run_id, phase
),

running AS (
  SELECT run_id, phase, COUNT(*) AS devices, SUM(idle_ratio ORDER BY idle_ratio) AS idle_ratios
  FROM metrics.device_idle
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id, phase
),

moved AS (
  SELECT run_id, phase, SUM(message_bytes_per_step ORDER BY message_bytes_per_step) AS bytes
  FROM metrics.traffic_volume
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id, phase
),

found AS (
  SELECT
    run_id,
    'ttft' AS metric,
    clock AS part,
    ttft_ms AS value,
    'ms' AS unit,
    prefill_steps || ' prefill step' || CASE WHEN prefill_steps > 1 THEN 's' ELSE '' END AS detail
  FROM metrics.ttft
  WHERE run_id IN (SELECT UNNEST(runs))
  UNION ALL
  SELECT
    run_id,
    'tpot' AS metric,
    clock AS part,
    tpot_ms AS value,
    'ms' AS unit,
    'p50 ' || ROUND(p50_ms, 3) || ', p90 ' || ROUND(p90_ms, 3) AS detail
  FROM metrics.tpot
  WHERE run_id IN (SELECT UNNEST(runs))
  UNION ALL
  SELECT
    run_id,
    'throughput' AS metric,
    '' AS part,
    output_tokens_per_s AS value,
    'tokens/s' AS unit,
    output_tokens || ' tokens, ' || clock || ' clock' AS detail
  FROM metrics.throughput
  WHERE run_id IN (SELECT UNNEST(runs))
  UNION ALL
  SELECT
    t.run_id,
    'step_time' AS metric,
    t.phase AS part,
    COALESCE(s.step_ms, t.step_ms) AS value,
    'ms' AS unit,
    CASE WHEN s.steps IS NULL THEN '' ELSE 'mean over devices, ' END
    || CASE COALESCE(s.steps, t.steps) WHEN 1 THEN 'one step' ELSE COALESCE(s.steps, t.steps) || ' steps' END AS detail
  FROM timed AS t
  LEFT JOIN stepped AS s ON t.run_id = s.run_id AND t.phase IS NOT DISTINCT FROM s.phase
  UNION ALL
  SELECT
    run_id,
    'mfu' AS metric,
    phase AS part,
    100 * mfu AS value,
    '%' AS unit,
    'of the peak of all devices' AS detail
  FROM metrics.mfu
  WHERE run_id IN (SELECT UNNEST(runs))
  UNION ALL
  SELECT
    run_id,
    'hbm_bandwidth' AS metric,
    phase AS part,
    SUM(bytes) / SUM(busy_ms ORDER BY busy_ms) / 1e6 AS value,
    'GB/s' AS unit,
    'of a device while it is busy' AS detail
  FROM metrics.hbm_bandwidth
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id, phase
  UNION ALL
  SELECT
    r.run_id,
    'device_idle' AS metric,
    r.phase AS part,
    100 * COALESCE(s.idle, r.idle_ratios / r.devices) AS value,
    '%' AS unit,
    'mean over devices' AS detail
  FROM running AS r
  LEFT JOIN stepped AS s ON r.run_id = s.run_id AND r.phase IS NOT DISTINCT FROM s.phase
  UNION ALL
  SELECT
    e.run_id,
    'exposed_communication' AS metric,
    e.phase AS part,
    COALESCE(
      ANY_VALUE(s.exposed_ms),
      SUM(e.exposed_ms ORDER BY e.exposed_ms) / COALESCE(ANY_VALUE(r.devices), COUNT(DISTINCT e.device_id))
    ) AS value,
    'ms' AS unit,
    CASE WHEN e.phase = 'outside' THEN 'mean over devices' ELSE 'per step, mean over devices' END AS detail
  FROM metrics.exposed_communication AS e
  LEFT JOIN running AS r ON e.run_id = r.run_id AND e.phase IS NOT DISTINCT FROM r.phase
  LEFT JOIN stepped AS s ON e.run_id = s.run_id AND e.phase IS NOT DISTINCT FROM s.phase
  WHERE e.run_id IN (SELECT UNNEST(runs))
  GROUP BY e.run_id, e.phase
  UNION ALL
  SELECT
    run_id,
    'collective_count' AS metric,
    phase AS part,
    SUM(executions_per_step ORDER BY executions_per_step) AS value,
    '' AS unit,
    STRING_AGG(kind || ' ' || axis || ' ' || ROUND(executions_per_step, 2), ', ' ORDER BY kind, axis) AS detail
  FROM metrics.collective_count
  WHERE run_id IN (SELECT UNNEST(runs))
  GROUP BY run_id, phase
  UNION ALL
  SELECT
    run_id,
    'traffic_volume' AS metric,
    phase AS part,
    CASE
      WHEN bytes >= 1e9 THEN bytes / 1e9
      WHEN bytes >= 1e6 THEN bytes / 1e6
      WHEN bytes >= 1e3 THEN bytes / 1e3
      ELSE bytes
    END AS value,
    CASE WHEN bytes >= 1e9 THEN 'GB' WHEN bytes >= 1e6 THEN 'MB' WHEN bytes >= 1e3 THEN 'kB' ELSE 'bytes' END AS unit,
    'message bytes of a device' AS detail
  FROM moved
)

SELECT
  r.run_id, n.position, n.metric,
  CASE WHEN f.part = 'outside' THEN REPLACE(n.name, ' per step', '') ELSE n.name END AS name,
  COALESCE(f.part, '') AS part,
  f.value,
  COALESCE(f.unit, '') AS unit,
  f.detail
FROM main.runs AS r
CROSS JOIN numbers AS n
LEFT JOIN found AS f ON r.run_id = f.run_id AND n.metric = f.metric AND f.value IS NOT NULL
WHERE r.run_id IN (SELECT UNNEST(runs));

CREATE MACRO macros.step_savings(runs) AS TABLE WITH steps AS (
  SELECT run_id, phase, SUM(span_ps) AS time_ps
  FROM models.timed_phases
  WHERE LIST_CONTAINS(runs, run_id)
  GROUP BY run_id, phase
),

timed AS (
  SELECT run_id, event_id
  FROM models.timed_collectives
  WHERE LIST_CONTAINS(runs, run_id)
),

waits AS (
  SELECT run_id, r.phase, SUM(r.wait_ps) AS wait_ps
  FROM models.collective_ranks AS r
  INNER JOIN timed USING (run_id, event_id)
  WHERE NOT r.is_partial
  GROUP BY run_id, r.phase
),

shares AS (
  SELECT
    run_id, phase,
    CASE part
      WHEN 'exposed communication' THEN 'communication_fraction'
      WHEN 'waiting for copies' THEN 'copy_overhead'
      ELSE 'device_idle'
    END AS metric,
    CASE part
      WHEN 'exposed communication' THEN 'communication that is hidden altogether'
      WHEN 'waiting for copies' THEN 'copies that are hidden altogether'
      ELSE 'devices that never idle'
    END AS change,
    share AS saved,
    TRUE AS is_upper_bound
  FROM macros.step_shares(runs)
  WHERE part IN ('exposed communication', 'waiting for copies', 'idle')
  UNION ALL
  SELECT
    s.run_id, s.phase,
    'sync_wait' AS metric,
    'no waiting for late devices in collectives' AS change,
    w.wait_ps / s.time_ps AS saved,
    TRUE AS is_upper_bound
  FROM steps AS s
  INNER JOIN waits AS w ON s.run_id = w.run_id AND s.phase IS NOT DISTINCT FROM w.phase
  UNION ALL
  SELECT
    run_id, phase, metric,
    resource || ' twice as fast' AS change,
    SUM(saved ORDER BY saved) AS saved,
    BOOL_OR(is_upper_bound) AS is_upper_bound
  FROM macros.speedups(runs)
  WHERE factor = '2'
  GROUP BY run_id, phase, metric, resource
)

SELECT
  run_id,
  COALESCE(phase, '') AS phase,
  metric, change, saved, is_upper_bound
FROM shares
WHERE saved IS NOT NULL;

CREATE MACRO macros.study_choices(runs) AS TABLE WITH points AS (
  SELECT *
  FROM macros.study_points(runs)
  WHERE COALESCE(is_fitting, TRUE)
),

-- workloads of which not every configuration has a prefill
partial AS (
  SELECT
    workload,
    COUNT(tokens_per_s_per_chip) > 0 AS has_prompts,
    COUNT(usd_per_chip_hour) = COUNT(*) AS is_priced
  FROM points
  GROUP BY workload
  HAVING COUNT(tokens_per_s_per_chip) < COUNT(*)
),

decoding AS (
  SELECT
    workload, d.has_prompts, p.run_id, p.configuration,
    CASE WHEN d.is_priced THEN p.usd_per_chip_hour * 1e6 / 3.6e3 END AS usd,
    p.batch_size * p.tokens_per_s_per_user / p.chips AS rate,
    p.batch_size * p.user_low / p.chips AS low,
    p.batch_size * p.user_high / p.chips AS high
  FROM points AS p
  INNER JOIN partial AS d USING (workload)
),

rated AS (
  SELECT
    workload, run_id, configuration,
    1 AS "position",
    'one user' AS purpose,
    'tokens/s per user' AS unit,
    tokens_per_s_per_user AS value, user_low AS low, user_high AS high,
    -tokens_per_s_per_user AS badness
  FROM points
  UNION ALL
  SELECT
    workload, run_id, configuration,
    2 AS "position",
    'the first token' AS purpose,
    'ms' AS unit,
    ttft_ms AS value, ttft_low_ms AS low, ttft_high_ms AS high,
    ttft_ms AS badness
  FROM points
  UNION ALL
  SELECT
    workload, run_id, configuration,
    3 AS "position",
    'most tokens per chip' AS purpose,
    'tokens/s per chip' AS unit,
    tokens_per_s_per_chip AS value, chip_low AS low, chip_high AS high,
    -tokens_per_s_per_chip AS badness
  FROM points
  UNION ALL
  SELECT
    workload, run_id, configuration,
    CASE WHEN has_prompts THEN 5 ELSE 3 END AS "position",
    'most tokens per chip in decode' AS purpose,
    'tokens/s per chip' AS unit,
    rate AS value, low, high,
    -rate AS badness
  FROM decoding
  UNION ALL
  SELECT
    workload, run_id, configuration,
    6 AS "position",
    'least cost in decode' AS purpose,
    'USD per million output tokens' AS unit,
    usd / rate AS value,
    usd / high AS low,
    usd / low AS high,
    usd / rate AS badness
  FROM decoding
  UNION ALL
  SELECT
    workload, run_id, configuration,
    4 AS "position",
    'least cost' AS purpose,
    'USD per million output tokens, prompts included' AS unit,
    usd_per_million_tokens AS value,
    usd_per_million_tokens * tokens_per_s_per_chip / chip_high AS low,
    usd_per_million_tokens * tokens_per_s_per_chip / chip_low AS high,
    usd_per_million_tokens AS badness
  FROM points
),

-- workloads whose price is not known for every configuration
unpriced AS (
  SELECT workload
  FROM points
  GROUP BY workload
  HAVING COUNT(usd_per_million_tokens) < COUNT(*)
),

ranked AS (
  SELECT
    *,
    ROW_NUMBER() OVER (PARTITION BY workload, "position" ORDER BY badness, configuration, run_id) AS place
  FROM rated
  WHERE value IS NOT NULL AND NOT ("position" = 4 AND workload IN (SELECT u.workload FROM unpriced AS u))
)

SELECT
  b.workload, -- Model, layers and lengths, as in macros.study_points.
  b."position", -- Order of the purposes.
  -- one user, the first token, most tokens per chip or least cost, these two also in decode.
  b.purpose,
  b.run_id, -- The best run.
  b.configuration, -- Its configuration.
  b.value, -- What it reaches.
  b.unit, -- The unit of value.
  b.low, -- Low end of the range of a predicted one.
  b.high, -- High end.
  n.configuration AS next_configuration, -- The configuration that follows.
  n.value AS next_value, -- What that one reaches.
  -- Whether the ranges of the two overlap, so that either may be the better one; NULL without ranges.
  b.low <= n.high AND n.low <= b.high AS is_within_range
FROM ranked AS b
INNER JOIN ranked AS n ON b.workload = n.workload AND b."position" = n."position" AND n.place = 2
WHERE b.place = 1;

CREATE MACRO macros.study_parallelisms(runs) AS TABLE WITH configurations AS (
  SELECT *
  FROM macros.study_points(runs)
),

points AS (
  SELECT
    p.*,
    CASE
      WHEN r.mesh IS NOT NULL
        THEN
          COALESCE(
            NULLIF(
              CONCAT_WS(
                ' + ',
                CASE WHEN r.pp > 1 THEN 'PP' END,
                CASE WHEN r.dp > 1 THEN 'DP' END,
                CASE WHEN r.ep > 1 THEN 'EP' END,
                CASE WHEN r.tp > 1 THEN 'TP' END,
                CASE WHEN r.sp > 1 OR r.sequence_parallelism IS NOT NULL THEN 'SP' END
              ), ''
            ), 'one device'
          )
    END AS parallelism
  FROM configurations AS p
  INNER JOIN main.runs AS r USING (run_id)
),

exposed AS (
  SELECT run_id, MIN(value) AS share
  FROM main.metric_values
  WHERE
    metric = 'communication_fraction' AND LIST_CONTAINS(runs, run_id) AND dimensions ->> '$.phase' = 'decode'
  GROUP BY run_id
),

-- what is sent in a decode step of the run; NULL where some of it is not known
sent AS (
  SELECT
    run_id,
    CASE
      WHEN COUNT(wire_bytes) = COUNT(*) THEN SUM(wire_bytes / steps ORDER BY device_id, kind, axis)
    END AS step_bytes
  FROM models.collective_work
  WHERE phase = 'decode' AND steps > 0 AND LIST_CONTAINS(runs, run_id)
  GROUP BY run_id
),

measured AS (
  SELECT
    run_id, 1 AS "position", 'tokens/s per user' AS measure, tokens_per_s_per_user AS value, FALSE AS is_less_better
  FROM points
  UNION ALL
  SELECT
    run_id, 2 AS "position", 'tokens/s per chip' AS measure, tokens_per_s_per_chip AS value, FALSE AS is_less_better
  FROM points
  UNION ALL
  SELECT
    run_id, 3 AS "position", 'exposed communication, % of a decode step' AS measure, 100 * share AS value,
    TRUE AS is_less_better
  FROM exposed
  UNION ALL
  SELECT
    run_id, 4 AS "position", 'bytes sent for a token, all devices' AS measure, s.step_bytes / p.batch_size AS value,
    TRUE AS is_less_better
  FROM sent AS s
  INNER JOIN points AS p USING (run_id)
)

SELECT
  run_id,
  p.workload, -- Model, layers and lengths, as in macros.study_points.
  p.label, -- The configuration, after its model where the study has several workloads.
  p.model, -- Model or model family; unknown where neither is known.
  p.mesh,
  p.origin, -- Where its times come from: recorded, predicted or compiled.
  p.parallelism, -- The axes that split the model or the batch, such as TP or DP + TP.
  m."position", -- Position of the measure.
  m.measure, -- What is measured, with its unit.
  m.value, -- The value.
  -- The best of its workload and parallelism.
  m.value = CASE
    WHEN m.is_less_better THEN MIN(m.value) OVER (PARTITION BY p.workload, p.parallelism, m.measure)
    ELSE MAX(m.value) OVER (PARTITION BY p.workload, p.parallelism, m.measure)
  END AS is_best
FROM measured AS m
INNER JOIN points AS p USING (run_id)
WHERE p.parallelism IS NOT NULL AND m.value IS NOT NULL;

CREATE MACRO macros.study_parts(runs) AS TABLE WITH points AS (
  SELECT *
  FROM macros.study_points(runs)
),

shares AS (
  SELECT *
  FROM macros.step_shares(runs)
),

parts AS (
  SELECT DISTINCT part, "position"
  FROM models.step_parts
  WHERE LIST_CONTAINS(runs, run_id)
)

SELECT
  run_id,
  p.workload, -- Model, layers and lengths, as in macros.study_points.
  p.configuration, -- What tells the run from the others of its workload.
  p.label, -- The configuration, after its model where the study has several workloads.
  p.place, -- Position of the run in its workload, by throughput per chip.
  s.phase, -- Phase; empty for steps of none.
  s.part, -- The part.
  q."position", -- Position of the part.
  s.mean_ms, -- Time of a step, mean over devices and steps.
  s.share, -- Its share of the step.
  -- The share of exposed communication, on every row of the phase; 0 where nothing communicates.
  MAX(CASE WHEN s.part = 'exposed communication' THEN s.share ELSE 0 END) OVER (PARTITION BY run_id, s.phase)
    AS communication
FROM points AS p
INNER JOIN shares AS s USING (run_id)
INNER JOIN parts AS q ON s.part = q.part;

