/*---
parameters:
  run: The run, by its id.
  first_event: The first event.
  end_event: The event after the last one.
  threads: >
    The lines that the events belong to, as a list of structs; first_event_id is the line's first event, place its process
    and thread as members of a JSON object, kind the kind of the line, and is_named whether its events name their
    instruction.
  is_for_viewers: >
    Whether to round durations so that the Perfetto UI does not drop events, and to add arguments that tell the place of
    an op in the model.
reads_runs: [run]
description: >
  The text of events in a Chrome trace, with the members that the profiler's exporter writes.
notes: >
  The Perfetto UI rounds the start and the duration to nanoseconds one by one. For a viewer, an event that this would
  make longer or shorter lasts from its rounded start to its rounded end, and exact_dur has its exact duration. The
  added arguments are layer, iteration, phase and step, where they are known. Costs that an op's own event states come
  behind those of its instruction, because readers take the last of two arguments with one name.
---*/
WITH events AS (
  SELECT
    event_id, instruction_id, NULL AS name,
    start_ps, duration_ps, device_offset_ps, device_duration_ps, basis, low_ps, high_ps, is_extrapolated,
    link_ps, COALESCE(flops, model_flops, bytes_accessed) IS NOT NULL AS is_costed,
    CASE WHEN is_for_viewers THEN iteration END AS iteration,
    CASE WHEN is_for_viewers THEN phase END AS phase,
    CASE WHEN is_for_viewers THEN step END AS step
  FROM main.ops
  WHERE run_id = run AND event_id >= first_event AND event_id < end_event
  UNION ALL
  SELECT
    event_id, NULL AS instruction_id, name, start_ps, duration_ps, NULL AS device_offset_ps, NULL AS device_duration_ps,
    NULL AS basis, NULL AS low_ps, NULL AS high_ps, NULL AS is_extrapolated, NULL AS link_ps, FALSE AS is_costed,
    NULL AS iteration, NULL AS phase, NULL AS step
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
    event_id, instruction_id, name, string_value,
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
    STRING_AGG(key || value, ',' ORDER BY key) AS members,
    STRING_AGG(key || COALESCE(number, value), ',' ORDER BY key) AS samples
  FROM stat_texts
  WHERE event_id IS NOT NULL
  GROUP BY event_id
),

instruction_texts AS (
  SELECT
    instruction_id,
    MAX(string_value) FILTER (WHERE name = 'name') AS long_name,
    MAX(string_value) FILTER (WHERE name IN ('display_name', 'event_name')) AS event_name,
    STRING_AGG(key || value, ',' ORDER BY key)
    FILTER (WHERE name NOT IN ('name', 'display_name', 'event_name')) AS members
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
    instruction_id, i.opcode, i.module, i.program_id,
    COALESCE(s.event_name, i.name) AS name,
    s.event_name, s.members,
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
    instruction_id, name,
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
    t.place, t.kind, t.is_named,
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
    e.event_id, e.place, e.kind, e.duration_ps, e.ts, e.dur, e.end_ts, e.shown_dur,
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
      '"predicted_link_ps":"' || e.link_ps || '"',
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
  event_id,
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
FROM written
