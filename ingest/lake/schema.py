"""Defines every table of the warehouse once: name, columns, types, units and a sentence for each.

Parquet metadata, DuckDB comments and the documentation are generated from this module.
Times are integer picoseconds since the run's profile start; intervals are half open, [start, end).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tracewarehouse.ingest.columns.plane_names import LINE_KINDS, PLANE_KINDS

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 7
"""Increased whenever a table changes; an error about another version names the command that ingests again."""

_ARROW = {
    "VARCHAR": "string",
    "BOOLEAN": "bool",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "UBIGINT": "uint64",
    "DOUBLE": "double",
    "BLOB": "binary",
}


@dataclass(frozen=True)
class Column:
    """One column: SQL type, a sentence for the reader, and its unit if it has one."""

    name: str
    type: str
    doc: str
    unit: str | None = None
    is_key: bool = False
    is_nullable: bool = True

    @property
    def arrow(self) -> pa.Field:
        """The Arrow field; text is dictionary-encoded only while it is written."""
        import pyarrow as pa

        metadata = {"comment": self.doc} | ({"unit": self.unit} if self.unit else {})
        return pa.field(self.name, pa.type_for_alias(_ARROW[self.type]), self.is_nullable, metadata)


@dataclass(frozen=True)
class Table:
    """One table: its columns in order and what a row is."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    @cached_property
    def arrow(self) -> pa.Schema:
        """Arrow schema of the Parquet files."""
        import pyarrow as pa

        return pa.schema(
            [c.arrow for c in self.columns],
            metadata={"table": self.name, "comment": self.doc, "schema_version": str(SCHEMA_VERSION)},
        )

    @cached_property
    def arrow_of_run(self) -> pa.Schema:
        """Arrow schema of the rows of one run, without `run_id`, which the writer of the file adds."""
        return self.arrow.remove(self.arrow.get_field_index("run_id"))

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return tuple(c.name for c in self.columns if c.is_key)


def _key(name: str, type_: str, doc: str, unit: str | None = None) -> Column:
    return Column(name, type_, doc, unit, is_key=True, is_nullable=False)


def _must(name: str, type_: str, doc: str, unit: str | None = None) -> Column:
    return Column(name, type_, doc, unit, is_nullable=False)


def _table(name: str, doc: str, *columns: Column) -> Table:
    return Table(name, doc, (_key("run_id", "VARCHAR", "The run: one capture, over all its hosts."), *columns))


_STAT_VALUE = (
    _must("kind", "VARCHAR", "Type in the capture: double, uint64, int64, string, bytes or ref (a shared string)."),
    Column("int_value", "BIGINT", "Value of an int64, or of a uint64 below 2^63."),
    Column("double_value", "DOUBLE", "Value of a double."),
    Column("string_value", "VARCHAR", "Value of a string or ref; a uint64 from 2^63 on, in decimal."),
    Column("bytes_value", "BLOB", "Value of bytes."),
)

RUNS = _table(
    "runs",
    "One row per run: what ran, on what, and how complete the capture is.",
    _must("name", "VARCHAR", "Short name for people: from the manifest, else the capture's file or folder name."),
    _must("backend", "VARCHAR", "Kind of the devices: tpu, gpu, cpu (virtual devices), or unknown."),
    _must("format", "VARCHAR", "Format of the capture: xplane or chrome."),
    _must("host_count", "INTEGER", "Hosts whose events are here.", "hosts"),
    _must("device_count", "INTEGER", "Devices whose events are here.", "devices"),
    Column("profile_start_ns", "BIGINT", "Start of the profile, Unix time; all times of the run count from it.", "ns"),
    Column("profile_stop_ns", "BIGINT", "End of the profile, Unix time.", "ns"),
    _must("event_count", "BIGINT", "Events of the capture, on all lines of all planes.", "events"),
    Column("model", "VARCHAR", "Model name, from the manifest or the card."),
    Column("model_family", "VARCHAR", "Model family, such as llama or deepseek_v3."),
    Column("dtype", "VARCHAR", "Precision of weights and activations, such as bfloat16."),
    Column("batch_size", "INTEGER", "Sequences per step.", "sequences"),
    Column("input_length", "INTEGER", "Prompt tokens per sequence.", "tokens"),
    Column("output_length", "INTEGER", "Generated tokens per sequence, the one from prefill included.", "tokens"),
    Column("num_layers", "INTEGER", "Transformer layers.", "layers"),
    Column("hidden_size", "INTEGER", "Width of the residual stream.", "elements"),
    Column("num_heads", "INTEGER", "Attention query heads.", "heads"),
    Column("head_dim", "INTEGER", "Width of an attention head.", "elements"),
    Column("num_params", "BIGINT", "Parameters of the model.", "parameters"),
    Column("vocab_size", "INTEGER", "Tokens of the vocabulary.", "tokens"),
    Column("num_params_active", "BIGINT", "Parameters that one token uses; of a dense model all.", "parameters"),
    Column("num_params_embedding", "BIGINT", "Parameters of the embedding tables.", "parameters"),
    Column(
        "has_tied_embeddings",
        "BOOLEAN",
        "The output head is the embedding table and counts once among the parameters.",
    ),
    Column("mesh", "VARCHAR", "Mesh axes and sizes, outermost first, such as 'dp=2,tp=2'."),
    Column("pp", "INTEGER", "Size of the pipeline-parallel axis."),
    Column("dp", "INTEGER", "Size of the data-parallel axis."),
    Column("ep", "INTEGER", "Size of the expert-parallel axis."),
    Column("tp", "INTEGER", "Size of the tensor-parallel axis."),
    Column("sp", "INTEGER", "Size of the sequence-parallel axis, where it is one of its own."),
    Column(
        "sequence_parallelism", "VARCHAR", "Sequence-parallel mode over tp: megatron, ulysses, ring; NULL for none."
    ),
    Column("microbatches", "INTEGER", "Microbatches per step in a pipeline.", "microbatches"),
    Column("framework", "VARCHAR", "What ran the model and its version, such as 'torch_xla 2.9.0'."),
    Column("card", "VARCHAR", "The CCL-Bench workload card as JSON, whole; NULL without a card."),
    Column("manifest", "VARCHAR", "The collector's manifest as JSON, whole; NULL without a manifest."),
    Column("costs", "VARCHAR", "The costs of kernels that were given at ingest, as JSON; NULL without any."),
    _must("is_truncated", "BOOLEAN", "The profiler dropped events, or a line stands at a known event cap."),
    Column("missing_hosts", "VARCHAR", "Hosts that the manifest names and that are not here, separated by commas."),
    Column(
        "missing_devices", "INTEGER", "Devices that HLO groups or the manifest name and that are not here.", "devices"
    ),
    _must("source_digest", "VARCHAR", "SHA-256 over the hosts' uncompressed captures."),
    _must("source_bytes", "BIGINT", "Size of the hosts' uncompressed captures.", "bytes"),
    _must("ingest_version", "VARCHAR", "Version of tracewarehouse that wrote these tables."),
    _must("schema_version", "INTEGER", "Version of these tables."),
)

HOSTS = _table(
    "hosts",
    "One row per host of a run, which is one file of the capture.",
    _key("host", "VARCHAR", "Name of the host, unique in the run."),
    _must("host_index", "INTEGER", "Position of the host in the run, from 0."),
    Column("hostname", "VARCHAR", "Hostname as the profiler recorded it; not always unique."),
    _must("file_name", "VARCHAR", "Name of the file when it was first ingested."),
    _must("digest", "VARCHAR", "SHA-256 of the uncompressed file."),
    _must("bytes", "BIGINT", "Size of the uncompressed file.", "bytes"),
    Column("profile_start_ns", "BIGINT", "Start of the profile on this host, Unix time.", "ns"),
    Column("profile_stop_ns", "BIGINT", "End of the profile on this host, Unix time.", "ns"),
    _must(
        "clock_offset_ps",
        "BIGINT",
        "Added to this host's own times (which count from its profile start) for every time in these tables.",
        "ps",
    ),
    _must(
        "clock_source",
        "VARCHAR",
        "Where the offset comes from: first_host (the run's clock is this host's), profile_start (the hosts' wall "
        "clocks), collective_ends (those, corrected so that shared collectives end together), or none.",
    ),
    Column(
        "clock_correction_ps",
        "BIGINT",
        "The part of clock_offset_ps that comes from collective ends; NULL where none was applied.",
        "ps",
    ),
    Column(
        "clock_residual_ps",
        "BIGINT",
        "How far, in the median, the ends of one collective on this and an earlier host still lie apart.",
        "ps",
    ),
    Column("clock_instances", "BIGINT", "Executions of collectives shared with an earlier host that were compared."),
    _must("event_count", "BIGINT", "Events in the file.", "events"),
)

DEVICES = _table(
    "devices",
    "One row per device of a run: an accelerator core, or a virtual CPU device.",
    _key("device_id", "INTEGER", "The device, counted from 0 over all hosts of the run."),
    _must("host", "VARCHAR", "The host it belongs to."),
    _must("plane", "VARCHAR", "The profiler's plane name, such as /device:TPU:0."),
    _must("local_ordinal", "INTEGER", "The device's number on its host."),
    Column("global_id", "INTEGER", "The device's number in the whole slice, where the capture or manifest tells it."),
    _must("backend", "VARCHAR", "tpu, gpu, cpu or unknown."),
    Column("kind", "VARCHAR", "Device type as recorded, such as 'TPU v6 Lite'; else that of the card."),
    Column("chip_id", "INTEGER", "The chip in the slice that this core is on."),
    Column("core_id", "INTEGER", "The core's number on its chip."),
    Column("pp_index", "INTEGER", "Coordinate on the pipeline-parallel axis."),
    Column("dp_index", "INTEGER", "Coordinate on the data-parallel axis."),
    Column("ep_index", "INTEGER", "Coordinate on the expert-parallel axis."),
    Column("tp_index", "INTEGER", "Coordinate on the tensor-parallel axis."),
    Column("sp_index", "INTEGER", "Coordinate on the sequence-parallel axis."),
    Column("first_layer", "INTEGER", "First transformer layer of the device's pipeline stage.", "layers"),
    Column("last_layer", "INTEGER", "Last transformer layer of the device's pipeline stage.", "layers"),
    Column(
        "first_slot",
        "INTEGER",
        "Slot of first_layer in the program of all stages, as instructions.stage_layer counts them.",
    ),
    Column("peak_flops_per_s", "DOUBLE", "Peak dense matrix rate, of bf16 where the chip has several.", "FLOP/s"),
    Column("peak_int8_flops_per_s", "DOUBLE", "The same of int8; NULL where it has no rate of its own.", "FLOP/s"),
    Column("peak_fp8_flops_per_s", "DOUBLE", "The same of fp8; NULL where it has no rate of its own.", "FLOP/s"),
    Column("peak_hbm_gbps", "DOUBLE", "Peak memory bandwidth, decimal.", "GB/s"),
    Column("peak_ici_gbps", "DOUBLE", "Peak inter-chip bandwidth of the chip, all links, one direction.", "GB/s"),
    Column(
        "peak_source",
        "VARCHAR",
        "Where the peaks come from: capture, hardware table, both of them, or the chip that the card names.",
    ),
)

QUALITY_FLAGS = _table(
    "quality_flags",
    "One row per reason to read a run's numbers with care; a run without any has no row.",
    _key("index", "INTEGER", "Number of the flag in the run."),
    _must("flag", "VARCHAR", "What it is: one of the names listed below."),
    Column("host", "VARCHAR", "The host that it is about; NULL for the whole run."),
    _must("detail", "VARCHAR", "A sentence with names and numbers, or the profiler's own words."),
)

PLANES = _table(
    "planes",
    "One row per plane of a capture, also of those without lines.",
    _key("plane_index", "INTEGER", "The plane, counted from 0 over the run."),
    _must("host", "VARCHAR", "The host."),
    _must("plane", "VARCHAR", "The profiler's plane name; several planes may have one."),
    _must("plane_id", "BIGINT", "The profiler's plane id."),
    _must("kind", "VARCHAR", f"What it is, by its name: {', '.join(PLANE_KINDS)}."),
    Column("device_id", "INTEGER", "The device whose events it holds."),
    _must("line_count", "INTEGER", "Lines of the plane.", "lines"),
)

LINES = _table(
    "lines",
    "One row per line of the profiler (a device's event stream, or a host thread), empty ones included.",
    _key("line_index", "INTEGER", "The line, counted from 0 over the run."),
    _must("plane_index", "INTEGER", "Its plane."),
    _must("host", "VARCHAR", "The host."),
    _must("plane", "VARCHAR", "The profiler's plane name."),
    _must("line", "VARCHAR", "The profiler's own line name."),
    _must("kind", "VARCHAR", f"What it is, by its name: {', '.join(LINE_KINDS)}."),
    _must("line_id", "BIGINT", "The profiler's line id; a host line's thread id."),
    Column("display_name", "VARCHAR", "The name to show instead, where the capture has one."),
    Column("display_id", "BIGINT", "The id to show and sort by instead, where the capture has one."),
    _must("timestamp_ns", "BIGINT", "What the events' offsets count from, as in the file; start_ps has it in.", "ns"),
    Column("duration_ps", "BIGINT", "The line's own duration, where the capture has one.", "ps"),
    Column("first_start_ps", "BIGINT", "Start of its first event since the run's profile start.", "ps"),
    Column("last_end_ps", "BIGINT", "End of its last event.", "ps"),
    Column("device_id", "INTEGER", "The device, on device planes."),
    _must("event_count", "BIGINT", "Events on the line.", "events"),
    _must("first_event_id", "BIGINT", "event_id of the line's first event; the others follow in file order."),
)

INSTRUCTIONS = _table(
    "instructions",
    "One row per distinct HLO instruction, and per distinct name of a device event that is not one.",
    _key("instruction_id", "INTEGER", "The instruction, counted from 0 in the run."),
    Column("program_id", "UBIGINT", "The compiled program (XLA module) it belongs to."),
    Column("module", "VARCHAR", "Name of the HLO module, without the program id."),
    _must(
        "name", "VARCHAR", "HLO instruction name such as 'fusion.12'; the event's name where it is not an instruction."
    ),
    Column(
        "opcode", "VARCHAR", "HLO opcode such as 'dot', 'fusion' or 'all-reduce-start'; NULL where not an instruction."
    ),
    Column(
        "category", "VARCHAR", "The profiler's hlo_category; on other backends the opcode, for fusions '<kind> fusion'."
    ),
    Column("hlo_text", "VARCHAR", "The instruction as HLO text, where the capture holds it."),
    Column("shape", "VARCHAR", "Result shape without layout, such as 'bf16[1024,5120]'."),
    Column("dtype", "VARCHAR", "Element type of the result, or of a tuple's largest element."),
    Column(
        "operand_dtype",
        "VARCHAR",
        "Of a matrix product, the element type that it multiplies: that of its operands, the wider of two; of a fusion "
        "the narrowest that two of its matrices have. NULL of other instructions, and where not known.",
    ),
    Column("flops", "BIGINT", "Floating-point operations of one execution, as the profiler says.", "FLOP"),
    Column("model_flops", "BIGINT", "The same without work that the compiler added, as the profiler says.", "FLOP"),
    Column(
        "bytes_accessed",
        "BIGINT",
        "Memory traffic of one execution (not message bytes), as the profiler says.",
        "bytes",
    ),
    Column(
        "given_flops",
        "BIGINT",
        "Floating-point operations of one execution, as `tw ingest --costs` was told; takes precedence.",
        "FLOP",
    ),
    Column("given_bytes_accessed", "BIGINT", "Memory traffic of one execution, in the same way.", "bytes"),
    Column("op_name", "VARCHAR", "The framework's name path of the operation."),
    Column(
        "layer",
        "INTEGER",
        "Transformer layer, as layer_source tells; NULL where devices run it for different layers, or where not known.",
    ),
    Column(
        "stage_layer",
        "INTEGER",
        "Slot of a layer in a pipeline's program, as layer_source tells; models.op_layers gives the layer.",
    ),
    Column("tick", "INTEGER", "Tick of a pipeline's schedule, from op_name."),
    Column(
        "part",
        "VARCHAR",
        "Part of the model, as part_source tells: attn, mlp, moe, embed, lm_head, norm, pipeline.",
    ),
    Column(
        "layer_source",
        "VARCHAR",
        "What tells layer or stage_layer: marked (op_name) or inferred (what repeats in a program without marks).",
    ),
    Column(
        "part_source",
        "VARCHAR",
        "What tells part: marked (op_name) or inferred (its neighbours in an inferred layer).",
    ),
    Column(
        "layer_confidence",
        "DOUBLE",
        "How sure the inferred layer is, from 0.8 to 1; below that none is told. NULL where none is inferred.",
    ),
    Column("source", "VARCHAR", "Source line, as file:line."),
    _must(
        "op_class",
        "VARCHAR",
        "What a device does in its time: container (runs the ops that it holds: while, conditional, call), "
        "communication (a collective, its start or its done), copy (a copy, or a part of another asynchronous op), or "
        "compute.",
    ),
    Column("collective", "VARCHAR", "Kind of collective, such as all-reduce, also for its -start and -done halves."),
    Column("async_role", "VARCHAR", "start or done, for the halves of an asynchronous op."),
    Column("async_start", "VARCHAR", "For a done: name of the start instruction it ends."),
    Column("channel_id", "BIGINT", "Channel of a collective."),
    Column("message_bytes", "BIGINT", "Message of one execution on one device (all-gather: the full buffer).", "bytes"),
    Column("group_count", "INTEGER", "Number of replica groups, or source-target pairs.", "groups"),
    Column("group_size", "INTEGER", "Devices in a replica group; 2 for source-target pairs.", "devices"),
    Column("replica_groups", "VARCHAR", "Replica groups or source-target pairs, expanded, as JSON."),
)

OPS = _table(
    "ops",
    "One row per device event on every line of the profiler; nothing is dropped.",
    _key("event_id", "BIGINT", "The event, counted over the run in file order."),
    _must("host", "VARCHAR", "The host."),
    Column("device_id", "INTEGER", "The device; NULL on a plane that belongs to no single device."),
    _must("plane", "VARCHAR", "The profiler's plane name."),
    _must("line", "VARCHAR", "The profiler's own line name, such as 'XLA Ops'; on virtual CPU devices the thread."),
    _must("instruction_id", "INTEGER", "The HLO instruction or event name."),
    _must("start_ps", "BIGINT", "Start since the run's profile start.", "ps"),
    _must("duration_ps", "BIGINT", "Duration; [start_ps, start_ps + duration_ps).", "ps"),
    _must("self_ps", "BIGINT", "Duration minus the events nested directly in it on the same line.", "ps"),
    _must("depth", "INTEGER", "Nesting depth on the line, 0 outermost."),
    Column("parent_event_id", "BIGINT", "The event on the same line that directly holds this one."),
    Column(
        "is_overlapping",
        "BOOLEAN",
        "Begins before an earlier event of the line at the same depth has ended; NULL on a line of asynchronous ops.",
    ),
    _must("is_leaf", "BOOLEAN", "An op that a device executes itself: on its op line and not a container."),
    Column(
        "idle_before_ps",
        "BIGINT",
        "Of a leaf op, time right before it in which the device ran no leaf op; NULL for the device's first.",
        "ps",
    ),
    Column(
        "overlap_ps",
        "BIGINT",
        "Of a leaf op, the part of its duration in which a leaf op that began before it still runs on the device. What "
        "is left of the durations adds up to the union of the ops.",
        "ps",
    ),
    Column(
        "class_overlap_ps",
        "BIGINT",
        "The same among the leaf ops of its op_class, such as all that compute.",
        "ps",
    ),
    Column("execution", "INTEGER", "Which execution of a program on this device, from 0 in time order."),
    Column("phase", "VARCHAR", "prefill, decode or another marked phase."),
    Column(
        "step", "INTEGER", "Step that owns it: the one before, until the next begins. Prefill is 0, decode follows."
    ),
    Column("device_offset_ps", "BIGINT", "The profiler's own device-clock offset stat.", "ps"),
    Column("device_duration_ps", "BIGINT", "The profiler's own device-clock duration stat.", "ps"),
)

COLLECTIVES = _table(
    "collectives",
    "One row per execution of a collective on a device.",
    _key("event_id", "BIGINT", "The event: the op, or the start half of an asynchronous one."),
    Column("done_event_id", "BIGINT", "The done half of an asynchronous collective."),
    _must("host", "VARCHAR", "The host."),
    _must("device_id", "INTEGER", "The device."),
    _must("instruction_id", "INTEGER", "The HLO instruction."),
    Column("instance", "BIGINT", "Number that the ranks of one execution share in the run."),
    _must("kind", "VARCHAR", "HLO opcode without -start: all-reduce, all-gather, reduce-scatter, all-to-all, ..."),
    _must("axis", "VARCHAR", "Mesh axes that the groups span, such as tp or dp+tp; 'unknown' where no mesh fits."),
    Column("axis_source", "VARCHAR", "mesh, or inferred: see main.mesh_axes; NULL where the axis is unknown."),
    Column("channel_id", "BIGINT", "HLO channel."),
    Column("group_index", "INTEGER", "Which of the instruction's replica groups this device is in."),
    Column("group_size", "INTEGER", "Devices in the group; 2 for a collective-permute pair.", "devices"),
    Column("rank_in_group", "INTEGER", "Position of this device in its group, where device numbers are known."),
    _must("is_partial", "BOOLEAN", "Some members of the group are not in the capture."),
    Column(
        "message_bytes", "BIGINT", "Message of this execution on this device (all-gather: the full buffer).", "bytes"
    ),
    Column("wire_bytes", "BIGINT", "Bytes this device sends under the algorithm of main.traffic.", "bytes"),
    Column("dtype", "VARCHAR", "Element type of the message."),
    _must("is_async", "BOOLEAN", "Split into a start and a done."),
    _must("start_ps", "BIGINT", "Start of the window: of the op, or of the start half.", "ps"),
    _must("end_ps", "BIGINT", "End of the window: of the op, or of the done half.", "ps"),
    _must(
        "exposed_ps", "BIGINT", "Part of the window in which the op line runs a collective, a start or a done.", "ps"
    ),
    _must(
        "exposed_added_ps",
        "BIGINT",
        "Part of its op, or of its start and its done, in which no communication that began before it runs on the op "
        "line; adds up to the exposed communication of a device.",
        "ps",
    ),
    _must("window_source", "VARCHAR", "How the window was found: op, start/done pair, async line, or start only."),
    Column("phase", "VARCHAR", "Phase."),
    Column("step", "INTEGER", "Step of the run."),
    Column(
        "previous_axis",
        "VARCHAR",
        "Mesh axes of the collective before it: of those that started before it on the device, the one that ends last. "
        "NULL for the device's first.",
    ),
    Column("previous_end_ps", "BIGINT", "End of the collective before it; NULL for the device's first.", "ps"),
    Column("previous_phase", "VARCHAR", "Phase of the collective before it."),
    Column("previous_step", "INTEGER", "Step of the collective before it."),
)

COPIES = _table(
    "copies",
    "One row per copy on a device: an op that copies, or the start of an asynchronous op other than a collective with "
    "the done that ends it. A done ends the last start of its instruction before it; one without a partner has no row.",
    _key("event_id", "BIGINT", "The event: the op, or the start half of an asynchronous one."),
    Column("done_event_id", "BIGINT", "The done half of an asynchronous one."),
    _must("host", "VARCHAR", "The host."),
    _must("device_id", "INTEGER", "The device."),
    _must("instruction_id", "INTEGER", "The HLO instruction."),
    _must("is_async", "BOOLEAN", "Split into a start and a done."),
    _must("start_ps", "BIGINT", "Start of the window: of the op, or of the start half.", "ps"),
    _must("end_ps", "BIGINT", "End of the window: of the op, or of the done half.", "ps"),
    _must(
        "exposed_added_ps",
        "BIGINT",
        "Part of the window in which the device neither computes nor communicates, and in which no copy that began "
        "before it is under way; adds up to the exposed copy time of a device.",
        "ps",
    ),
    Column("phase", "VARCHAR", "Phase in which it starts."),
    Column("step", "INTEGER", "Step in which it starts."),
)

COLLECTIVE_GROUPS = _table(
    "collective_groups",
    "One row per member of each replica group (or source-target pair) of each collective instruction.",
    _key("instruction_id", "INTEGER", "The HLO instruction."),
    _key("group_index", "INTEGER", "The group or pair, from 0."),
    _key("rank", "INTEGER", "Position in the group; 0 source and 1 target of a pair."),
    _must("logical_id", "INTEGER", "The device's number as HLO counts it."),
    Column("device_id", "INTEGER", "The device of the run; NULL where it is not in the capture."),
)

MESH_AXES = _table(
    "mesh_axes",
    "The axes of the device mesh that are longer than 1: as the manifest or the user says, or inferred from the groups "
    "of collectives.",
    _key("position", "INTEGER", "Place of the axis, 0 outermost."),
    Column("axis", "VARCHAR", "pp, dp, ep, tp or sp; NULL where an inferred axis could not be named."),
    _must("size", "INTEGER", "Devices along the axis.", "devices"),
    _must("stride", "INTEGER", "Distance between neighbours on the axis, as HLO numbers devices.", "devices"),
    _must("source", "VARCHAR", "mesh, or inferred."),
    _must("confidence", "DOUBLE", "Probability that the name of an inferred axis is right; 1 for a mesh."),
    Column("evidence", "VARCHAR", "What an inferred name rests on: collectives along the axis, by kind and part."),
)

TRAFFIC = _table(
    "traffic",
    "Bytes from device to device for one execution of a collective instruction, under a named algorithm.",
    _key("instruction_id", "INTEGER", "The HLO instruction."),
    _key("source_device_id", "INTEGER", "The sender."),
    _key("target_device_id", "INTEGER", "The receiver."),
    _must("algorithm", "VARCHAR", "Algorithm model: ring, pairwise (all-to-all) or direct (collective-permute)."),
    _must("bytes", "BIGINT", "Bytes sent in one execution.", "bytes"),
)

PHASES = _table(
    "phases",
    "Intervals that say what ran when: phases and steps, per device and on the host's clock.",
    _must("host", "VARCHAR", "The host."),
    Column("device_id", "INTEGER", "The device; NULL for an interval on the host."),
    _must("kind", "VARCHAR", "phase, step, module, layer, microbatch or annotation."),
    _must("name", "VARCHAR", "prefill, decode, or the module's or annotation's name."),
    Column("index", "INTEGER", "Step number for steps; count from 0 for the others."),
    _must("start_ps", "BIGINT", "Start since the run's profile start.", "ps"),
    _must("end_ps", "BIGINT", "End, exclusive.", "ps"),
    _must(
        "source",
        "VARCHAR",
        "What it was read from. Executions: module run. Steps: step line, step line of another device, marker, module "
        "name, server call, program (begins a step), told program, manifest.",
    ),
)

STEP_BATCHES = _table(
    "step_batches",
    "The batches that a server scheduled, as vLLM on TPU writes them beside its captures; the k-th is that of the k-th "
    "step.",
    _key("rank", "INTEGER", "Data-parallel rank of the server."),
    _key("position", "INTEGER", "Place of the batch among those of the rank, from 0."),
    Column("step", "INTEGER", "The step that ran it; NULL where there are not as many steps as batches."),
    Column("batch_id", "BIGINT", "The server's number of the batch."),
    Column("kind", "VARCHAR", "prefill_only, prefill_heavy, balanced, decode_heavy, decode_only or ambiguous."),
    Column("scheduled_tokens", "BIGINT", "Tokens that were scheduled.", "tokens"),
    Column("prefill_tokens", "BIGINT", "Those of prompts.", "tokens"),
    Column("decode_tokens", "BIGINT", "Those of requests that generate.", "tokens"),
    Column("padded_tokens", "BIGINT", "Tokens that were computed, padding included.", "tokens"),
    Column("requests", "BIGINT", "Requests in the batch.", "requests"),
    Column("min_kv_length", "BIGINT", "Shortest context among the requests.", "tokens"),
)

HOST_EVENTS = _table(
    "host_events",
    "One row per event of a host thread (TraceMe), and of any plane that is not a device's.",
    _key("event_id", "BIGINT", "The event, counted over the run in file order."),
    _must("host", "VARCHAR", "The host."),
    _must("plane", "VARCHAR", "The profiler's plane name."),
    _must("thread", "VARCHAR", "The profiler's line name."),
    _must("thread_id", "BIGINT", "The profiler's line id."),
    _must("name", "VARCHAR", "The event's name."),
    _must("start_ps", "BIGINT", "Start since the run's profile start.", "ps"),
    _must("duration_ps", "BIGINT", "Duration.", "ps"),
)

COUNTERS = _table(
    "counters",
    "One row per sample of a counter.",
    _key("event_id", "BIGINT", "The event that carries the sample."),
    _key("name", "VARCHAR", "The counter, and its series where it has several."),
    _must("host", "VARCHAR", "The host."),
    _must("plane", "VARCHAR", "The profiler's plane name."),
    Column("device_id", "INTEGER", "The device, on device planes."),
    _must("start_ps", "BIGINT", "Time of the sample since the run's profile start.", "ps"),
    Column("value", "DOUBLE", "The sample; NULL where it is not a number."),
)

EVENT_STATS = _table(
    "event_stats",
    "Every stat of an event that has no column of its own, so that nothing of the capture is lost.",
    _key("event_id", "BIGINT", "The event, in ops or host_events."),
    _key("name", "VARCHAR", "The stat's name."),
    *_STAT_VALUE,
)

INSTRUCTION_STATS = _table(
    "instruction_stats",
    "Every stat of an event's metadata that has no column of its own.",
    _key("instruction_id", "INTEGER", "The instruction."),
    _key("name", "VARCHAR", "The stat's name."),
    *_STAT_VALUE,
)

PLANE_STATS = _table(
    "plane_stats",
    "Every stat of a plane, such as device_type_string or profile_start_time.",
    _key("plane_index", "INTEGER", "The plane, in planes."),
    _must("host", "VARCHAR", "The host."),
    _must("plane", "VARCHAR", "The plane's name."),
    _key("name", "VARCHAR", "The stat's name."),
    *_STAT_VALUE,
)

METADATA_STATS = _table(
    "metadata_stats",
    "What event metadata says that no instruction has: on planes of hosts all stats (the compiler's Hlo Protos are "
    "such), display_name and metadata; on every plane child_id, once per child.",
    _key("plane_index", "INTEGER", "The plane, in planes."),
    _key("metadata_id", "BIGINT", "The profiler's id of the metadata, or its position where the format has no ids."),
    _key("index", "INTEGER", "Position of the value among those of the metadata."),
    _must("event", "VARCHAR", "Name that the metadata gives to its events."),
    _must("name", "VARCHAR", "The stat's name; for a child_id, string_value is the child's name."),
    *_STAT_VALUE,
)

STAT_METADATA = _table(
    "stat_metadata",
    "One row per stat that the capture describes.",
    _key("plane_index", "INTEGER", "The plane, in planes."),
    _key("stat_id", "BIGINT", "The profiler's id of the stat."),
    _must("name", "VARCHAR", "The stat's name."),
    _must("description", "VARCHAR", "What it means, as the profiler says."),
)

METRIC_VALUES = _table(
    "metric_values",
    "The values of the metrics of the run, evaluated from the views at ingest, but for those of single instructions.",
    _key("metric", "VARCHAR", "The metric."),
    _key("version", "INTEGER", "Its version."),
    _key("dimensions", "VARCHAR", "The row's other grain columns as a JSON object, keys in the order of the grain."),
    _must("value", "DOUBLE", "The value; a row of the metric without one is not here."),
    _must("unit", "VARCHAR", "Unit of the value."),
    _must("fingerprint", "VARCHAR", "Fingerprint of the SQL that made it."),
)

TABLES: dict[str, Table] = {
    t.name: t
    for t in (
        RUNS, QUALITY_FLAGS, HOSTS, DEVICES, PLANES, LINES, INSTRUCTIONS, OPS, COLLECTIVES, COPIES, COLLECTIVE_GROUPS,
        MESH_AXES, TRAFFIC, PHASES, STEP_BATCHES, HOST_EVENTS, COUNTERS, EVENT_STATS, INSTRUCTION_STATS, PLANE_STATS,
        METADATA_STATS, STAT_METADATA, METRIC_VALUES,
    )
}  # fmt: skip
"""All tables by name, in the order in which they are documented."""
