"""Defines every table of the warehouse: its columns with type, unit and a sentence each.

Parquet metadata, DuckDB comments and the documentation are generated from this module.
Times are integer picoseconds since the run's profile start; intervals are half open, [start, end).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tracewarehouse.ingest.columns.profiler_names import LINE_KINDS, PLANE_KINDS

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 9
"""Version of the tables; raise it whenever a table changes. The error about another version names the command that
ingests again."""

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
    """One column: its SQL type, a sentence for the reader, and its unit if it has one."""

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
    """One table: its columns in order, and a sentence that says what a row is."""

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

    @cached_property
    def names_sql(self) -> str:
        """The columns as a SELECT lists them."""
        return ", ".join(f'"{c.name}"' for c in self.columns)

    @cached_property
    def typed_sql(self) -> str:
        """The columns as a SELECT lists them, each cast to its type."""
        return ", ".join(f'CAST("{c.name}" AS {c.type}) AS "{c.name}"' for c in self.columns)

    @cached_property
    def nulls_sql(self) -> str:
        """The columns of `typed_sql`, with NULL in each."""
        return ", ".join(f'CAST(NULL AS {c.type}) AS "{c.name}"' for c in self.columns)

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
    "One row per run: what ran, on which devices, and how complete the capture is.",
    _must(
        "name", "VARCHAR", "Short name for people: from the manifest, or else the name of the capture's file or folder."
    ),
    _must("backend", "VARCHAR", "Kind of the devices: tpu, gpu, cpu (virtual devices), or unknown."),
    _must(
        "format", "VARCHAR", "Format of the capture: xplane or chrome; of a compiled program, hlo_proto or hlo_text."
    ),
    _must("host_count", "INTEGER", "Hosts that have events in the capture.", "hosts"),
    _must("device_count", "INTEGER", "Devices that have events in the capture.", "devices"),
    Column(
        "profile_start_ns", "BIGINT", "Start of the profile, Unix time; all times of the run count from here.", "ns"
    ),
    Column("profile_stop_ns", "BIGINT", "End of the profile, Unix time.", "ns"),
    _must("event_count", "BIGINT", "Events of the capture, on all lines of all planes.", "events"),
    Column("model", "VARCHAR", "Model name, from the manifest or the card."),
    Column("model_family", "VARCHAR", "Model family, such as llama or deepseek_v3."),
    Column("dtype", "VARCHAR", "Precision of weights and activations, such as bfloat16."),
    Column("batch_size", "INTEGER", "Sequences per step.", "sequences"),
    Column("input_length", "INTEGER", "Prompt tokens per sequence.", "tokens"),
    Column("output_length", "INTEGER", "Generated tokens per sequence, including the one from prefill.", "tokens"),
    Column("num_layers", "INTEGER", "Transformer layers.", "layers"),
    Column("hidden_size", "INTEGER", "Width of the residual stream.", "elements"),
    Column("num_heads", "INTEGER", "Attention query heads.", "heads"),
    Column("head_dim", "INTEGER", "Width of an attention head.", "elements"),
    Column("num_params", "BIGINT", "Parameters of the model.", "parameters"),
    Column("vocab_size", "INTEGER", "Tokens of the vocabulary.", "tokens"),
    Column(
        "num_params_active", "BIGINT", "Parameters that one token uses; all of them in a dense model.", "parameters"
    ),
    Column("num_params_embedding", "BIGINT", "Parameters of the embedding tables.", "parameters"),
    Column(
        "has_tied_embeddings",
        "BOOLEAN",
        "True if the output head is the embedding table, so that the parameters count it once.",
    ),
    Column("mesh", "VARCHAR", "Mesh axes and sizes, outermost first, such as 'dp=2,tp=2'."),
    Column("pp", "INTEGER", "Size of the pipeline-parallel axis."),
    Column("dp", "INTEGER", "Size of the data-parallel axis."),
    Column("ep", "INTEGER", "Size of the expert-parallel axis."),
    Column("tp", "INTEGER", "Size of the tensor-parallel axis."),
    Column("sp", "INTEGER", "Size of the sequence-parallel axis, if the mesh has one."),
    Column(
        "sequence_parallelism", "VARCHAR", "Sequence-parallel mode over tp: megatron, ulysses, ring; NULL for none."
    ),
    Column("microbatches", "INTEGER", "Microbatches per step in a pipeline.", "microbatches"),
    Column("framework", "VARCHAR", "Framework that ran the model, with its version, such as 'torch_xla 2.9.0'."),
    Column("card", "VARCHAR", "The whole CCL-Bench workload card, as JSON; NULL without a card."),
    Column("manifest", "VARCHAR", "The collector's whole manifest, as JSON; NULL without a manifest."),
    Column("costs", "VARCHAR", "Costs of kernels that `tw ingest --costs` gave, as JSON; NULL without any."),
    _must(
        "is_truncated",
        "BOOLEAN",
        "True if the profiler dropped events, or a line holds as many as a profiler's known limit.",
    ),
    Column("missing_hosts", "VARCHAR", "Hosts that the manifest names but the capture lacks, separated by commas."),
    Column(
        "missing_devices", "INTEGER", "Devices that HLO groups or the manifest name but the capture lacks.", "devices"
    ),
    _must("source_digest", "VARCHAR", "SHA-256 of the hosts' uncompressed captures."),
    _must("source_bytes", "BIGINT", "Size of the hosts' uncompressed captures.", "bytes"),
    _must("ingest_version", "VARCHAR", "Version of tracewarehouse that wrote these tables."),
    _must("schema_version", "INTEGER", "Version of these tables."),
)

HOSTS = _table(
    "hosts",
    "One row per host of a run. Each host is one file of the capture.",
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
        "Every time in these tables is the host's own time, counted from its profile start, plus this offset.",
        "ps",
    ),
    _must(
        "clock_source",
        "VARCHAR",
        "Where the offset comes from: first_host (the run uses this host's clock), profile_start (the hosts' wall "
        "clocks), collective_ends (wall clocks, corrected so that shared collectives end together), or none.",
    ),
    Column(
        "clock_correction_ps",
        "BIGINT",
        "The part of clock_offset_ps that comes from collective ends; NULL if no correction was made.",
        "ps",
    ),
    Column(
        "clock_residual_ps",
        "BIGINT",
        "Median distance that remains between the ends of one collective on this host and on an earlier one.",
        "ps",
    ),
    Column(
        "clock_instances",
        "BIGINT",
        "Number of shared executions of collectives that were compared with an earlier host.",
    ),
    _must("event_count", "BIGINT", "Events in the file.", "events"),
)

DEVICES = _table(
    "devices",
    "One row per device of a run: an accelerator core, or a virtual CPU device.",
    _key("device_id", "INTEGER", "The device, counted from 0 over all hosts of the run."),
    _must("host", "VARCHAR", "The device's host."),
    _must("plane", "VARCHAR", "The profiler's plane name, such as /device:TPU:0."),
    _must("local_ordinal", "INTEGER", "The device's number on its host."),
    Column("global_id", "INTEGER", "The device's number in the whole slice, if the capture or the manifest gives it."),
    _must("backend", "VARCHAR", "tpu, gpu, cpu or unknown."),
    Column("kind", "VARCHAR", "Device type as recorded, such as 'TPU v6 Lite'; otherwise as the card says."),
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
        "Slot of first_layer in the program that all stages share, counted as in instructions.stage_layer.",
    ),
    Column("peak_flops_per_s", "DOUBLE", "Peak dense matrix rate; that of bf16 if the chip has several.", "FLOP/s"),
    Column(
        "peak_int8_flops_per_s",
        "DOUBLE",
        "Peak dense matrix rate of int8; NULL if the chip has none of its own.",
        "FLOP/s",
    ),
    Column(
        "peak_fp8_flops_per_s",
        "DOUBLE",
        "Peak dense matrix rate of fp8; NULL if the chip has none of its own.",
        "FLOP/s",
    ),
    Column("peak_hbm_gbps", "DOUBLE", "Peak memory bandwidth, decimal.", "GB/s"),
    Column(
        "peak_ici_gbps", "DOUBLE", "Peak inter-chip bandwidth of the chip over all links, in one direction.", "GB/s"
    ),
    Column(
        "peak_source",
        "VARCHAR",
        "Where the peaks come from: the capture, the hardware table, both, or the chip that the card names.",
    ),
)

QUALITY_FLAGS = _table(
    "quality_flags",
    "One row per reason to read a run's numbers with care.",
    _key("index", "INTEGER", "Number of the flag in the run."),
    _must("flag", "VARCHAR", "Name of the flag, one of those listed below."),
    Column("host", "VARCHAR", "The host that the flag is about; NULL for the whole run."),
    _must("detail", "VARCHAR", "A sentence with names and numbers, or the profiler's own words."),
)

PLANES = _table(
    "planes",
    "One row per plane of a capture, including planes without lines.",
    _key("plane_index", "INTEGER", "The plane, counted from 0 over the run."),
    _must("host", "VARCHAR", "The host."),
    _must("plane", "VARCHAR", "The profiler's plane name; several planes may share one."),
    _must("plane_id", "BIGINT", "The profiler's plane id."),
    _must("kind", "VARCHAR", f"Kind of plane, from its name: {', '.join(PLANE_KINDS)}."),
    Column("device_id", "INTEGER", "The device whose events the plane holds."),
    _must("line_count", "INTEGER", "Lines of the plane.", "lines"),
)

LINES = _table(
    "lines",
    "One row per line of the profiler (a device's event stream, or a host thread), including empty ones.",
    _key("line_index", "INTEGER", "The line, counted from 0 over the run."),
    _must("plane_index", "INTEGER", "The line's plane."),
    _must("host", "VARCHAR", "The host."),
    _must("plane", "VARCHAR", "The profiler's plane name."),
    _must("line", "VARCHAR", "The profiler's own line name."),
    _must("kind", "VARCHAR", f"Kind of line, from its name: {', '.join(LINE_KINDS)}."),
    _must("line_id", "BIGINT", "The profiler's line id; on a host line, the thread id."),
    Column("display_name", "VARCHAR", "Name to show instead, if the capture has one."),
    Column("display_id", "BIGINT", "Id to show and sort by instead, if the capture has one."),
    _must(
        "timestamp_ns",
        "BIGINT",
        "Time from which the events' offsets count, as in the file; start_ps includes it.",
        "ns",
    ),
    Column("duration_ps", "BIGINT", "The line's own duration, if the capture has one.", "ps"),
    Column("first_start_ps", "BIGINT", "Start of the line's first event, since the run's profile start.", "ps"),
    Column("last_end_ps", "BIGINT", "End of the line's last event.", "ps"),
    Column("device_id", "INTEGER", "The device, on device planes."),
    _must("event_count", "BIGINT", "Events on the line.", "events"),
    _must("first_event_id", "BIGINT", "event_id of the line's first event; the others follow in file order."),
)

INSTRUCTIONS = _table(
    "instructions",
    "One row per distinct HLO instruction, and per distinct name of other device events.",
    _key("instruction_id", "INTEGER", "The instruction, counted from 0 in the run."),
    Column("program_id", "UBIGINT", "The compiled program (XLA module) of the instruction."),
    Column("module", "VARCHAR", "Name of the HLO module, without the program id."),
    _must("name", "VARCHAR", "HLO instruction name such as 'fusion.12'; the event's name if it is no instruction."),
    Column(
        "opcode", "VARCHAR", "HLO opcode such as 'dot', 'fusion' or 'all-reduce-start'; NULL if it is no instruction."
    ),
    Column("category", "VARCHAR", "The profiler's hlo_category on TPU; elsewhere the opcode, or '<kind> fusion'."),
    Column("hlo_text", "VARCHAR", "The instruction as HLO text, if the capture holds it."),
    Column("shape", "VARCHAR", "Result shape without layout, such as 'bf16[1024,5120]'."),
    Column("dtype", "VARCHAR", "Element type of the result; of a tuple, that of its largest element."),
    Column(
        "operand_dtype",
        "VARCHAR",
        "Element type that a matrix product multiplies: the wider one of its two operands; in a fusion, the narrowest "
        "type that two of its matrices have. NULL for other instructions, and if not known.",
    ),
    Column("flops", "BIGINT", "Floating-point operations of one execution, as the profiler states.", "FLOP"),
    Column("model_flops", "BIGINT", "flops without the work that the compiler added, as the profiler states.", "FLOP"),
    Column(
        "bytes_accessed",
        "BIGINT",
        "Memory traffic of one execution (not message bytes), as the profiler states.",
        "bytes",
    ),
    Column(
        "given_flops",
        "BIGINT",
        "Floating-point operations of one execution that `tw ingest --costs` gave; these replace flops.",
        "FLOP",
    ),
    Column("given_bytes_accessed", "BIGINT", "Memory traffic of one execution that `tw ingest --costs` gave.", "bytes"),
    Column("op_name", "VARCHAR", "The framework's name path of the operation."),
    Column(
        "layer",
        "INTEGER",
        "Transformer layer, known from layer_source; NULL if devices run it for different layers, or if not known.",
    ),
    Column(
        "stage_layer",
        "INTEGER",
        "Slot of a layer in a pipeline's program, known from layer_source; models.op_layers gives the layer.",
    ),
    Column("tick", "INTEGER", "Tick of a pipeline's schedule, from op_name."),
    Column(
        "part",
        "VARCHAR",
        "Part of the model, known from part_source: attn, mlp, moe, embed, lm_head, norm or pipeline.",
    ),
    Column(
        "layer_source",
        "VARCHAR",
        "How layer or stage_layer is known: marked (in op_name), or inferred (from what repeats in the program).",
    ),
    Column(
        "part_source",
        "VARCHAR",
        "How part is known: marked (in op_name), or inferred (from its neighbours in an inferred layer).",
    ),
    Column(
        "layer_confidence",
        "DOUBLE",
        "How sure the inferred layer is, from 0.8 to 1; below 0.8 no layer is given. NULL if none is inferred.",
    ),
    Column("source", "VARCHAR", "Source line, as file:line."),
    _must(
        "op_class",
        "VARCHAR",
        "What the device does during the op: container (it runs the ops inside: while, conditional, call), "
        "communication (a collective, its start or its done), copy (a copy, or half of another asynchronous op), or "
        "compute.",
    ),
    Column("collective", "VARCHAR", "Kind of collective, such as all-reduce; its -start and -done halves have it too."),
    Column("async_role", "VARCHAR", "start or done, for the halves of an asynchronous op."),
    Column("async_start", "VARCHAR", "Of a done: name of the start instruction that it ends."),
    Column("channel_id", "BIGINT", "Channel of a collective."),
    Column(
        "message_bytes", "BIGINT", "Message size of one execution on one device (all-gather: the full buffer).", "bytes"
    ),
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
    _must("duration_ps", "BIGINT", "Duration. The op runs in [start_ps, start_ps + duration_ps).", "ps"),
    _must("self_ps", "BIGINT", "Duration without the events nested directly in it on the same line.", "ps"),
    _must("depth", "INTEGER", "Nesting depth on the line, 0 outermost."),
    Column("parent_event_id", "BIGINT", "The event on the same line in which this one is directly nested."),
    Column(
        "is_overlapping",
        "BOOLEAN",
        "True if it begins before an earlier event of the line at the same depth has ended; NULL on a line of "
        "asynchronous ops.",
    ),
    _must("is_leaf", "BOOLEAN", "True for an op that the device itself executes: on its op line, and not a container."),
    Column(
        "idle_before_ps",
        "BIGINT",
        "Of a leaf op: time right before it in which the device ran no leaf op; NULL for the device's first.",
        "ps",
    ),
    Column(
        "overlap_ps",
        "BIGINT",
        "Of a leaf op: the part of its duration in which a leaf op that began earlier still runs on the device. The "
        "sum of duration_ps - overlap_ps is the union of the ops.",
        "ps",
    ),
    Column(
        "class_overlap_ps",
        "BIGINT",
        "Like overlap_ps, but only among leaf ops of the same op_class, such as compute.",
        "ps",
    ),
    Column("execution", "INTEGER", "Execution of a program on this device, counted from 0 in order of time."),
    Column(
        "phase",
        "VARCHAR",
        "prefill or decode; outside before the device's first step and after its last; NULL in a step of no phase, and "
        "in a capture without steps.",
    ),
    Column("step", "INTEGER", "Step of the op. A step lasts until the next one begins. Prefill is 0; decode follows."),
    Column("device_offset_ps", "BIGINT", "The profiler's own stat of the offset on the device clock.", "ps"),
    Column("device_duration_ps", "BIGINT", "The profiler's own stat of the duration on the device clock.", "ps"),
)

COLLECTIVES = _table(
    "collectives",
    "One row per execution of a collective on a device. Those of a compiled program, which nothing has run, are the "
    "executions of one step, without times.",
    _key(
        "event_id",
        "BIGINT",
        "The event: the op, or the start half of an asynchronous one; in a program a number of the execution.",
    ),
    Column("done_event_id", "BIGINT", "The done half of an asynchronous collective."),
    _must("host", "VARCHAR", "The host."),
    _must("device_id", "INTEGER", "The device."),
    _must("instruction_id", "INTEGER", "The HLO instruction."),
    Column("instance", "BIGINT", "Number of the execution; all its ranks share it."),
    _must("kind", "VARCHAR", "HLO opcode without -start: all-reduce, all-gather, reduce-scatter, all-to-all, ..."),
    _must("axis", "VARCHAR", "Mesh axes that the groups span, such as tp or dp+tp; 'unknown' if no mesh fits."),
    Column(
        "axis_source",
        "VARCHAR",
        "How the axis is known: mesh, or inferred (see main.mesh_axes); NULL if it is unknown.",
    ),
    Column("channel_id", "BIGINT", "HLO channel."),
    Column("group_index", "INTEGER", "Which of the instruction's replica groups this device is in."),
    Column("group_size", "INTEGER", "Devices in the group; 2 for a collective-permute pair.", "devices"),
    Column("rank_in_group", "INTEGER", "Position of this device in its group, if device numbers are known."),
    _must("is_partial", "BOOLEAN", "True if some members of the group are not in the capture."),
    Column(
        "message_bytes",
        "BIGINT",
        "Message size of this execution on this device (all-gather: the full buffer).",
        "bytes",
    ),
    Column(
        "wire_bytes", "BIGINT", "Bytes that this device sends under the algorithm that main.traffic names.", "bytes"
    ),
    Column("dtype", "VARCHAR", "Element type of the message."),
    _must("is_async", "BOOLEAN", "True if it is split into a start and a done."),
    Column("start_ps", "BIGINT", "Start of the window: of the op, or of the start half; NULL in a program.", "ps"),
    Column("end_ps", "BIGINT", "End of the window: of the op, or of the done half; NULL in a program.", "ps"),
    Column(
        "exposed_ps",
        "BIGINT",
        "Part of the window in which the op line runs a collective, a start or a done; NULL in a program.",
        "ps",
    ),
    Column(
        "exposed_added_ps",
        "BIGINT",
        "Part of its op, or of its start and its done, in which no earlier communication runs on the op line. The sum "
        "over a device is its exposed communication. NULL in a program.",
        "ps",
    ),
    _must(
        "window_source",
        "VARCHAR",
        "How the window was found: op, start/done pair, async line, or start only; program, where there is none.",
    ),
    Column("phase", "VARCHAR", "Phase, as of ops."),
    Column("step", "INTEGER", "Step of the run."),
    Column(
        "previous_axis",
        "VARCHAR",
        "Mesh axes of the previous collective: of those that started earlier on the device, the one that ends last. "
        "NULL for the device's first.",
    ),
    Column("previous_end_ps", "BIGINT", "End of the previous collective; NULL for the device's first.", "ps"),
    Column("previous_phase", "VARCHAR", "Phase of the previous collective."),
    Column("previous_step", "INTEGER", "Step of the previous collective."),
)

COPIES = _table(
    "copies",
    "One row per copy on a device: an op that copies, or an asynchronous op (not a collective) from its start to its "
    "done. A done ends the latest start of its instruction before it; a half without a partner has no row.",
    _key("event_id", "BIGINT", "The event: the op, or the start half of an asynchronous one."),
    Column("done_event_id", "BIGINT", "The done half of an asynchronous one."),
    _must("host", "VARCHAR", "The host."),
    _must("device_id", "INTEGER", "The device."),
    _must("instruction_id", "INTEGER", "The HLO instruction."),
    _must("is_async", "BOOLEAN", "True if it is split into a start and a done."),
    _must("start_ps", "BIGINT", "Start of the window: of the op, or of the start half.", "ps"),
    _must("end_ps", "BIGINT", "End of the window: of the op, or of the done half.", "ps"),
    _must(
        "exposed_added_ps",
        "BIGINT",
        "Part of the window in which the device neither computes nor communicates and no earlier copy is under way. "
        "The sum over a device is its exposed copy time.",
        "ps",
    ),
    Column("phase", "VARCHAR", "Phase in which the copy starts, as of ops."),
    Column("step", "INTEGER", "Step in which the copy starts."),
)

COLLECTIVE_GROUPS = _table(
    "collective_groups",
    "One row per member of each replica group (or source-target pair) of each collective instruction.",
    _key("instruction_id", "INTEGER", "The HLO instruction."),
    _key("group_index", "INTEGER", "The group or pair, from 0."),
    _key("rank", "INTEGER", "Position in the group; in a pair, 0 is the source and 1 the target."),
    _must("logical_id", "INTEGER", "The device's number in HLO."),
    Column("device_id", "INTEGER", "The device of the run; NULL if it is not in the capture."),
)

MESH_AXES = _table(
    "mesh_axes",
    "One row per axis of the device mesh that is longer than 1. The manifest or the user states the axes, or they are "
    "inferred from the groups of collectives.",
    _key("position", "INTEGER", "Position of the axis, 0 outermost."),
    Column("axis", "VARCHAR", "pp, dp, ep, tp or sp; NULL if an inferred axis could not be named."),
    _must("size", "INTEGER", "Devices along the axis.", "devices"),
    _must("stride", "INTEGER", "Difference of the HLO device numbers of neighbours on the axis.", "devices"),
    _must("source", "VARCHAR", "How the axis is known: mesh (stated) or inferred."),
    _must("confidence", "DOUBLE", "Probability that the name of an inferred axis is right; 1 for a stated mesh."),
    Column("evidence", "VARCHAR", "Reasons for an inferred name: collectives along the axis, by kind and part."),
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
    Column("index", "INTEGER", "Number of a step; other intervals are counted from 0."),
    _must("start_ps", "BIGINT", "Start since the run's profile start.", "ps"),
    _must("end_ps", "BIGINT", "End, exclusive.", "ps"),
    _must(
        "source",
        "VARCHAR",
        "Where it comes from. Executions: module run, op line (inferred). Steps: step line, marker, module name, "
        "server call, program (begins a step), told program (named by the user), manifest; or that of another device.",
    ),
)

STEP_BATCHES = _table(
    "step_batches",
    "One row per batch that a server scheduled, as vLLM on TPU writes them beside its captures. The k-th batch belongs "
    "to the k-th step. The server also writes of the batch before which it stops the profiler; that one has no step.",
    _key("rank", "INTEGER", "Rank of the server, from the name of its files or folder."),
    _key("position", "INTEGER", "Position of the batch among those of the rank, from 0."),
    Column("step", "INTEGER", "The step that ran the batch; NULL if none in the capture did, or if not known."),
    Column("batch_id", "BIGINT", "The server's number for the batch."),
    Column("kind", "VARCHAR", "prefill_only, prefill_heavy, balanced, decode_heavy, decode_only or ambiguous."),
    Column("scheduled_tokens", "BIGINT", "Scheduled tokens.", "tokens"),
    Column("prefill_tokens", "BIGINT", "Scheduled tokens of prompts.", "tokens"),
    Column("decode_tokens", "BIGINT", "Scheduled tokens of requests that generate.", "tokens"),
    Column("padded_tokens", "BIGINT", "Computed tokens, including padding.", "tokens"),
    Column("requests", "BIGINT", "Requests in the batch.", "requests"),
    Column("min_kv_length", "BIGINT", "Shortest context among the requests.", "tokens"),
)

HOST_EVENTS = _table(
    "host_events",
    "One row per event of a host thread (TraceMe), and of every other plane that belongs to no device.",
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
    _key("name", "VARCHAR", "The counter, with its series if it has several."),
    _must("host", "VARCHAR", "The host."),
    _must("plane", "VARCHAR", "The profiler's plane name."),
    Column("device_id", "INTEGER", "The device, on device planes."),
    _must("start_ps", "BIGINT", "Time of the sample since the run's profile start.", "ps"),
    Column("value", "DOUBLE", "The sample; NULL if it is not a number."),
)

EVENT_STATS = _table(
    "event_stats",
    "One row per stat of an event that has no column of its own, so that nothing of the capture is lost.",
    _key("event_id", "BIGINT", "The event, in ops or host_events."),
    _key("name", "VARCHAR", "The stat's name."),
    *_STAT_VALUE,
)

INSTRUCTION_STATS = _table(
    "instruction_stats",
    "One row per stat of an event's metadata that has no column of its own.",
    _key("instruction_id", "INTEGER", "The instruction."),
    _key("name", "VARCHAR", "The stat's name."),
    *_STAT_VALUE,
)

PLANE_STATS = _table(
    "plane_stats",
    "One row per stat of a plane, such as device_type_string or profile_start_time.",
    _key("plane_index", "INTEGER", "The plane, in planes."),
    _must("host", "VARCHAR", "The host."),
    _must("plane", "VARCHAR", "The plane's name."),
    _key("name", "VARCHAR", "The stat's name."),
    *_STAT_VALUE,
)

METADATA_STATS = _table(
    "metadata_stats",
    "What event metadata says beyond instructions. On host planes: all stats (including the compiler's Hlo Protos), "
    "display_name and metadata. On every plane: child_id, once per child.",
    _key("plane_index", "INTEGER", "The plane, in planes."),
    _key("metadata_id", "BIGINT", "The profiler's id of the metadata, or its position if the format has no ids."),
    _key("index", "INTEGER", "Position of the value in the metadata."),
    _must("event", "VARCHAR", "Name that the metadata gives its events."),
    _must("name", "VARCHAR", "The stat's name; for a child_id, string_value is the child's name."),
    *_STAT_VALUE,
)

STAT_METADATA = _table(
    "stat_metadata",
    "One row per stat that the capture describes.",
    _key("plane_index", "INTEGER", "The plane, in planes."),
    _key("stat_id", "BIGINT", "The profiler's id of the stat."),
    _must("name", "VARCHAR", "The stat's name."),
    _must("description", "VARCHAR", "What the stat means, in the profiler's words."),
)

METRIC_VALUES = _table(
    "metric_values",
    "One row per metric value of the run, evaluated from the views at ingest. Metrics of single ops are not stored.",
    _key("metric", "VARCHAR", "The metric."),
    _key("version", "INTEGER", "Its version."),
    _key(
        "dimensions", "VARCHAR", "The row's other grain columns as a JSON object, with keys in the order of the grain."
    ),
    _must("value", "DOUBLE", "The value; rows without one are not stored."),
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
