"""Defines every table of the warehouse: its columns with type, unit and a sentence each.

Parquet metadata, DuckDB comments and the documentation are generated from this module.
Times are integer picoseconds since the run's profile start; intervals are half open, [start, end).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from textwrap import dedent
from typing import TYPE_CHECKING

from tracewarehouse.ingest.columns.profiler_names import LINE_KINDS, PLANE_KINDS

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 16
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


_COLUMN = re.compile(r"(?P<name>\w+)(?P<mark>[*!]?) +(?P<type>[A-Z]+) +(?P<doc>.*?)(?: \[(?P<unit>[^\[\],]+)\])?")
_RUN_ID = "run_id*  VARCHAR  The run: one capture, over all its hosts."


def _table(name: str, doc: str, columns: str) -> Table:
    """Return a table, whose columns are given one a line: name, SQL type, a sentence, and the unit in brackets.

    A star behind the name marks a column of the key, an exclamation mark one that is never NULL, as those of the key
    are. An indented line continues the one before it. Every table begins with `run_id`.
    """
    lines = re.sub(r"\n +", " ", _RUN_ID + dedent(columns)).splitlines()
    return Table(name, doc, tuple(_column(line) for line in lines if line))


def _column(line: str) -> Column:
    match = _COLUMN.fullmatch(line)
    if not match or match["type"] not in _ARROW:
        raise ValueError(f"not a column: {line}")
    is_key = match["mark"] == "*"
    return Column(match["name"], match["type"], match["doc"], match["unit"], is_key, is_nullable=not match["mark"])


_STAT_VALUE = """
    kind!         VARCHAR  Type in the capture: double, uint64, int64, string, bytes or ref (a shared string).
    int_value     BIGINT   Value of an int64, or of a uint64 below 2^63.
    double_value  DOUBLE   Value of a double.
    string_value  VARCHAR  Value of a string or ref; a uint64 from 2^63 on, in decimal.
    bytes_value   BLOB     Value of bytes.
"""

RUNS = _table(
    "runs",
    "One row per run: what ran, on which devices, and how complete the capture is.",
    """
    name!                 VARCHAR  Short name for people: from the manifest, or else the name of the capture's file or
        folder.
    origin!               VARCHAR  Where the times come from: recorded (a profiler measured them), predicted (computed
        from the compiled programs; nothing ran), or compiled (a program alone, without times).
    backend!              VARCHAR  Kind of the devices: tpu, gpu, cpu (virtual devices), or unknown.
    format!               VARCHAR  Format of the capture: xplane, kineto or chrome; of a compiled program, hlo_proto
        or hlo_text.
    host_count!           INTEGER  Hosts that have events in the capture. [hosts]
    device_count!         INTEGER  Devices that have events in the capture. [devices]
    profile_start_ns      BIGINT   Start of the profile, Unix time; all times of the run count from here. [ns]
    profile_stop_ns       BIGINT   End of the profile, Unix time. [ns]
    event_count!          BIGINT   Events of the capture, on all lines of all planes. [events]
    model                 VARCHAR  Model name, from the manifest or the card.
    model_family          VARCHAR  Model family, such as llama or deepseek_v3.
    dtype                 VARCHAR  Precision of weights and activations, such as bfloat16.
    batch_size            INTEGER  Sequences per step. [sequences]
    input_length          INTEGER  Prompt tokens per sequence. [tokens]
    output_length         INTEGER  Generated tokens per sequence, including the one from prefill. [tokens]
    num_layers            INTEGER  Transformer layers. [layers]
    hidden_size           INTEGER  Width of the residual stream. [elements]
    num_heads             INTEGER  Attention query heads. [heads]
    head_dim              INTEGER  Width of an attention head. [elements]
    num_params            BIGINT   Parameters of the model. [parameters]
    vocab_size            INTEGER  Tokens of the vocabulary. [tokens]
    num_params_active     BIGINT   Parameters that one token uses; all of them in a dense model. [parameters]
    num_params_embedding  BIGINT   Parameters of the embedding tables. [parameters]
    has_tied_embeddings   BOOLEAN  True if the output head is the embedding table, so that the parameters count it once.
    capacity_factor       VARCHAR  Places of an expert over its mean share of the tokens, such as 1.25; inf if no token
        is dropped. NULL without experts, where they have no places, or where not known.
    mesh                  VARCHAR  Mesh axes and sizes, outermost first, such as 'dp=2,tp=2'.
    pp                    INTEGER  Size of the pipeline-parallel axis.
    dp                    INTEGER  Size of the data-parallel axis.
    ep                    INTEGER  Size of the expert-parallel axis.
    tp                    INTEGER  Size of the tensor-parallel axis.
    sp                    INTEGER  Size of the sequence-parallel axis, if the mesh has one.
    sequence_parallelism  VARCHAR  Sequence-parallel mode over tp: megatron, ulysses, ring; NULL for none.
    microbatches          INTEGER  Microbatches per step in a pipeline. [microbatches]
    framework             VARCHAR  Framework that ran the model, with its version, such as 'torch_xla 2.9.0'.
    card                  VARCHAR  The whole CCL-Bench workload card, as JSON; NULL without a card.
    manifest              VARCHAR  The collector's whole manifest, as JSON; NULL without a manifest.
    costs                 VARCHAR  Costs of kernels that `tw ingest --costs` gave, as JSON; NULL without any.
    is_truncated!         BOOLEAN  True if the profiler dropped events, or a line holds as many as a profiler's known
        limit.
    missing_hosts         VARCHAR  Hosts that the manifest names but the capture lacks, separated by commas.
    missing_devices       INTEGER  Devices that HLO groups or the manifest name but the capture lacks. [devices]
    source_digest!        VARCHAR  SHA-256 of the hosts' uncompressed captures.
    source_bytes!         BIGINT   Size of the hosts' uncompressed captures. [bytes]
    ingest_version!       VARCHAR  Version of tracewarehouse that wrote these tables.
    schema_version!       INTEGER  Version of these tables.
    """,
)

HOSTS = _table(
    "hosts",
    "One row per host of a run. Each host is one file of the capture.",
    """
    host*                VARCHAR  Name of the host, unique in the run.
    host_index!          INTEGER  Position of the host in the run, from 0.
    hostname             VARCHAR  Hostname as the profiler recorded it; not always unique.
    file_name!           VARCHAR  Name of the file when it was first ingested.
    digest!              VARCHAR  SHA-256 of the uncompressed file.
    bytes!               BIGINT   Size of the uncompressed file. [bytes]
    profile_start_ns     BIGINT   Start of the profile on this host, Unix time. [ns]
    profile_stop_ns      BIGINT   End of the profile on this host, Unix time. [ns]
    clock_offset_ps!     BIGINT   Every time in these tables is the host's own time, counted from its profile start,
        plus this offset. [ps]
    clock_source!        VARCHAR  Where the offset comes from: first_host (the run uses this host's clock),
        profile_start (the hosts' wall clocks), collective_ends (wall clocks, corrected so that shared collectives end
        together), or none.
    clock_correction_ps  BIGINT   The part of clock_offset_ps that comes from collective ends; NULL if no correction was
        made. [ps]
    clock_residual_ps    BIGINT   Median distance that remains between the ends of one collective on this host and on an
        earlier one. [ps]
    clock_instances      BIGINT   Number of shared executions of collectives that were compared with an earlier host.
    event_count!         BIGINT   Events in the file. [events]
    """,
)

DEVICES = _table(
    "devices",
    "One row per device of a run: an accelerator core, or a virtual CPU device.",
    """
    device_id*             INTEGER  The device, counted from 0 over all hosts of the run.
    host!                  VARCHAR  The device's host.
    plane!                 VARCHAR  The profiler's plane name, such as /device:TPU:0.
    local_ordinal!         INTEGER  The device's number on its host.
    global_id              INTEGER  The device's number in the whole slice, if the capture or the manifest gives it.
    backend!               VARCHAR  tpu, gpu, cpu or unknown.
    kind                   VARCHAR  Device type as recorded, such as 'TPU v6 Lite'; otherwise as a GPU's properties, the
        card or --device state it.
    chip_id                INTEGER  The chip in the slice that this core is on; inferred for kinds with two devices a
        chip, where the capture does not say.
    core_id                INTEGER  The core's number on its chip.
    pp_index               INTEGER  Coordinate on the pipeline-parallel axis.
    dp_index               INTEGER  Coordinate on the data-parallel axis.
    ep_index               INTEGER  Coordinate on the expert-parallel axis.
    tp_index               INTEGER  Coordinate on the tensor-parallel axis.
    sp_index               INTEGER  Coordinate on the sequence-parallel axis.
    first_layer            INTEGER  First transformer layer of the device's pipeline stage. [layers]
    last_layer             INTEGER  Last transformer layer of the device's pipeline stage. [layers]
    first_slot             INTEGER  Slot of first_layer in the program that all stages share, counted as in
        instructions.stage_layer.
    peak_flops_per_s       DOUBLE   Peak dense matrix rate; that of bf16 if the chip has several. [FLOP/s]
    peak_int8_flops_per_s  DOUBLE   Peak dense matrix rate of int8; NULL if the chip has none of its own. [FLOP/s]
    peak_fp8_flops_per_s   DOUBLE   Peak dense matrix rate of fp8; NULL if the chip has none of its own. [FLOP/s]
    peak_tf32_flops_per_s  DOUBLE   Peak rate of TF32 in the matrix units of a GPU; NULL if not known. [FLOP/s]
    peak_f32_flops_per_s   DOUBLE   Peak rate of f32 without the matrix units of a GPU; NULL if not known. [FLOP/s]
    peak_hbm_gbps          DOUBLE   Peak memory bandwidth, decimal. [GB/s]
    peak_ici_gbps          DOUBLE   Peak of the chip over all ICI links, in one direction; NULL for others. [GB/s]
    link                   VARCHAR  Class of the links between chips: ici, nvlink or fabric (Infinity Fabric).
    peak_link_gbps         DOUBLE   Peak of the chip over all these links, in one direction. [GB/s]
    peak_die_gbps          DOUBLE   Peak between two devices of one chip, in one direction. [GB/s]
    peak_source            VARCHAR  Where the peaks come from: capture, hardware table, both, card or option (--device).
    chip_price_usd_per_h   DOUBLE   Price of the device's chip for an hour; NULL if unknown. [USD/h]
    chip_price_source      VARCHAR  Where the price comes from: the source and date of the list price in the hardware
        table, or option (--chip-price).
    """,
)

QUALITY_FLAGS = _table(
    "quality_flags",
    "One row per reason to read a run's numbers with care.",
    """
    index*   INTEGER  Number of the flag in the run.
    flag!    VARCHAR  Name of the flag, one of those listed below.
    host     VARCHAR  The host that the flag is about; NULL for the whole run.
    detail!  VARCHAR  A sentence with names and numbers, or the profiler's own words.
    """,
)

PLANES = _table(
    "planes",
    "One row per plane of a capture, including planes without lines.",
    f"""
    plane_index*  INTEGER  The plane, counted from 0 over the run.
    host!         VARCHAR  The host.
    plane!        VARCHAR  The profiler's plane name; several planes may share one.
    plane_id!     BIGINT   The profiler's plane id.
    kind!         VARCHAR  Kind of plane, from its name: {", ".join(PLANE_KINDS)}.
    device_id     INTEGER  The device whose events the plane holds.
    line_count!   INTEGER  Lines of the plane. [lines]
    """,
)

LINES = _table(
    "lines",
    "One row per line of the profiler (a device's event stream, or a host thread), including empty ones.",
    f"""
    line_index*      INTEGER  The line, counted from 0 over the run.
    plane_index!     INTEGER  The line's plane.
    host!            VARCHAR  The host.
    plane!           VARCHAR  The profiler's plane name.
    line!            VARCHAR  The profiler's own line name.
    kind!            VARCHAR  Kind of line, from its name: {", ".join(LINE_KINDS)}.
    line_id!         BIGINT   The profiler's line id; on a host line, the thread id.
    display_name     VARCHAR  Name to show instead, if the capture has one.
    display_id       BIGINT   Id to show and sort by instead, if the capture has one.
    timestamp_ns!    BIGINT   Time from which the events' offsets count, as in the file; start_ps includes it. [ns]
    duration_ps      BIGINT   The line's own duration, if the capture has one. [ps]
    first_start_ps   BIGINT   Start of the line's first event, since the run's profile start. [ps]
    last_end_ps      BIGINT   End of the line's last event. [ps]
    device_id        INTEGER  The device, on device planes.
    event_count!     BIGINT   Events on the line. [events]
    first_event_id!  BIGINT   event_id of the line's first event; the others follow in file order.
    """,
)

INSTRUCTIONS = _table(
    "instructions",
    "One row per distinct HLO instruction, and per distinct name of other device events.",
    """
    instruction_id*       INTEGER  The instruction, counted from 0 in the run.
    program_id            UBIGINT  The compiled program (XLA module) of the instruction.
    module                VARCHAR  Name of the HLO module, without the program id.
    name!                 VARCHAR  HLO instruction name such as 'fusion.12'; the event's name if it is no instruction.
    opcode                VARCHAR  HLO opcode such as 'dot', 'fusion' or 'all-reduce-start'; NULL if it is no
        instruction.
    category              VARCHAR  The profiler's hlo_category on TPU; elsewhere the opcode, or '<kind> fusion'.
    hlo_text              VARCHAR  The instruction as HLO text, if the capture holds it.
    shape                 VARCHAR  Result shape without layout, such as 'bf16[1024,5120]'; of kernels, only of products.
    signature             VARCHAR  What the op does, as its own line states it: result, opcode and operands, with types,
        shapes without dimensions of 1, and memories, such as 'vmem:f32[8] fusion:kLoop(hbm:f32[8])'. NULL if these are
        not all known.
    dtype                 VARCHAR  Element type of the result; of a tuple, that of its largest element.
    operand_dtype         VARCHAR  Element type that a matrix product multiplies: the wider one of its two operands; in
        a fusion, the narrowest type that two of its matrices have; tf32 where a kernel's name says that it rounds f32.
        NULL for other instructions, and if not known.
    flops                 BIGINT   Floating-point operations of one execution, as the profiler states; of a kernel, as
        the shapes of its PyTorch operator tell. Only one kernel of a call of a product has any. [FLOP]
    model_flops           BIGINT   flops without the work that the compiler added. [FLOP]
    bytes_accessed        BIGINT   Memory traffic of one execution (not message bytes), as the profiler states; of a
        kernel that is alone in a call of its PyTorch operator, the bytes of inputs and result. [bytes]
    hbm_bytes_accessed    BIGINT   Part of bytes_accessed in HBM, as memory_access_breakdown splits it; a start states
        what an asynchronous op reads, its done what it writes. NULL without that stat. [bytes]
    on_chip_bytes_accessed  BIGINT  Part of bytes_accessed in memories of the chip itself, in the same way. [bytes]
    given_flops           BIGINT   Floating-point operations of one execution that `tw ingest --costs` gave; these
        replace flops. [FLOP]
    given_bytes_accessed  BIGINT   Memory traffic of one execution that `tw ingest --costs` gave. [bytes]
    op_name               VARCHAR  The framework's name path of the operation.
    layer                 INTEGER  Transformer layer; layer_source says how it is known. NULL if unknown, or if the
        instruction runs for several layers, as in a loop over layers. models.op_layers gives the layer of each op.
    loop_layer            INTEGER  Of an instruction in a loop over layers: its layer in the first iteration. In a
        pipeline it counts from the first layer of the stage. A kernel that runs for several layers has it too.
    layers_per_iteration  INTEGER  Of an instruction in a loop over layers: the layers by which it advances in each
        iteration; negative in a loop that goes back through them, as in training. [layers]
    stage_layer           INTEGER  Slot of a layer in a pipeline's program, known from layer_source; models.op_layers
        gives the layer.
    tick                  INTEGER  Tick of a pipeline's schedule, from op_name.
    part                  VARCHAR  Part of the model, known from part_source: attn, mlp, moe, embed, lm_head, norm or
        pipeline.
    layer_source          VARCHAR  How layer, loop_layer or stage_layer is known: marked (in op_name), loop (a loop runs
        the layers), or inferred (from what repeats in the program).
    part_source           VARCHAR  How part is known: marked (in op_name), or inferred (from its neighbours in an
        inferred layer or in the body of a loop, or from the name of a GPU's kernel).
    layer_confidence      DOUBLE   How sure the inferred layer is, from 0.8 to 1; below 0.8 no layer is given. NULL if
        none is inferred.
    source                VARCHAR  Source line, as file:line.
    op_class!             VARCHAR  What the device does during the op: container (it runs the ops inside: while,
        conditional, call), communication (a collective, its start or its done), copy (a copy, or half of another
        asynchronous op), or compute.
    collective            VARCHAR  Kind of collective, such as all-reduce; its -start and -done halves have it too.
    async_role            VARCHAR  start or done, for the halves of an asynchronous op.
    async_start           VARCHAR  Name of the start instruction that a done ends.
    channel_id            BIGINT   Channel of a collective.
    message_bytes         BIGINT   Message size of one execution on one device (all-gather: the full buffer). [bytes]
    group_count           INTEGER  Number of replica groups, or source-target pairs. [groups]
    group_size            INTEGER  Devices in a replica group; 2 for source-target pairs. [devices]
    replica_groups        VARCHAR  Replica groups or source-target pairs, expanded, as JSON.
    """,
)

OPS = _table(
    "ops",
    "One row per device event on every line of the profiler; nothing is dropped.",
    """
    event_id*           BIGINT   The event, counted over the run in file order.
    host!               VARCHAR  The host.
    device_id           INTEGER  The device; NULL on a plane that belongs to no single device.
    plane!              VARCHAR  The profiler's plane name.
    line!               VARCHAR  The profiler's own line name, such as 'XLA Ops'; on virtual CPU devices the thread.
    instruction_id!     INTEGER  The HLO instruction or event name.
    start_ps!           BIGINT   Start since the run's profile start. [ps]
    duration_ps!        BIGINT   Duration. The op runs in [start_ps, start_ps + duration_ps). [ps]
    self_ps!            BIGINT   Duration without the events nested directly in it on the same line. [ps]
    depth!              INTEGER  Nesting depth on the line, 0 outermost.
    parent_event_id     BIGINT   The event on the same line in which this one is directly nested.
    is_overlapping      BOOLEAN  True if it begins before an earlier event of the line at the same depth has ended; NULL
        on a line of asynchronous ops.
    is_leaf!            BOOLEAN  True for an op that the device itself executes: on its op line, and not a container.
    idle_before_ps      BIGINT   Of a leaf op: time right before it in which the device ran no leaf op; NULL for the
        device's first. [ps]
    overlap_ps          BIGINT   Of a leaf op: the part of its duration in which a leaf op that began earlier still runs
        on the device. The sum of duration_ps - overlap_ps is the union of the ops. [ps]
    class_overlap_ps    BIGINT   Like overlap_ps, but only among leaf ops of the same op_class, such as compute. [ps]
    execution           INTEGER  Execution of a program on this device, counted from 0 in order of time.
    iteration           INTEGER  Iteration of the loop in which the op runs, counted from 0 in each run of the loop. Of
        nested loops the loop over layers counts: the outermost that has three products of its own, or two and more in
        inner loops; if there is none, the innermost loop. On GPUs without loops, a kernel that runs for several layers
        has the layer that the order of kernels shows. NULL elsewhere, and if the ops do not show it.
    phase               VARCHAR  prefill, decode, or mixed for a batch that does both; outside before the device's first
        step and after its last; NULL in a step of no phase, and in a capture without steps.
    step                INTEGER  Step of the op. A step lasts until the next one begins. Prefill is 0; decode follows.
    flops               BIGINT   Floating-point operations that the op's event states; NULL if it states none. [FLOP]
    model_flops         BIGINT   The op's flops without work that the compiler added, if the event states them. [FLOP]
    bytes_accessed      BIGINT   Memory traffic that the op's event states; NULL if it states none. [bytes]
    device_offset_ps    BIGINT   The profiler's own stat of the offset on the device clock. [ps]
    device_duration_ps  BIGINT   The profiler's own stat of the duration on the device clock. [ps]
    basis               VARCHAR  Of a predicted op: what its duration follows from, such as compiler_cycles, links,
        hbm_bytes, kernel_model, kernel_measured or wait. NULL in a recorded run.
    low_ps              BIGINT   Of a predicted op: the low end of the range of its duration. [ps]
    high_ps             BIGINT   Of a predicted op: the high end of the range of its duration. [ps]
    is_extrapolated     BOOLEAN  Of a predicted op: it stands for a layer that was not compiled, and repeats another's.
    link_ps             BIGINT   Of a predicted collective, or its start: by how much the step would be shorter if its
        bytes took no time on the links. The rest of its time is latency, or hides other work. [ps]
    """,
)

COLLECTIVES = _table(
    "collectives",
    "One row per execution of a collective on a device. A compiled program has not run; its rows are "
    "the executions of one step, without times.",
    """
    event_id*         BIGINT   The event: the op, or the start half of an asynchronous one; in a program a number of the
        execution.
    done_event_id     BIGINT   The done half of an asynchronous collective; between slices, the later of its two.
    second_event_id   BIGINT   Between slices, the other start: a collective there is a send and a recv.
    second_done_event_id  BIGINT  Between slices, the earlier of the two dones.
    host!             VARCHAR  The host.
    device_id!        INTEGER  The device.
    instruction_id!   INTEGER  The HLO instruction.
    instance          BIGINT   Number of the execution; all its ranks share it.
    kind!             VARCHAR  HLO opcode without -start: all-reduce, all-gather, reduce-scatter, all-to-all, ...; on
        GPUs also reduce, gather and scatter of NCCL, and unknown if nothing tells what a kernel of several kinds does.
    axis!             VARCHAR  Mesh axes that the groups span, such as tp or dp+tp; 'dcn' between slices, 'unknown' if
        no mesh fits.
    axis_source       VARCHAR  How the axis is known: mesh, described (by its process group, on GPUs), or inferred (see
        main.mesh_axes); NULL if it is unknown.
    link              VARCHAR  Class of the slowest links that carry it: die (all members share a chip), ici, nvlink,
        fabric, or dcn between slices. NULL where not known, as between hosts of GPUs.
    channel_id        BIGINT   HLO channel.
    group_index       INTEGER  Which of the instruction's replica groups this device is in.
    group_size        INTEGER  Devices in the group; 2 for a collective-permute pair. [devices]
    rank_in_group     INTEGER  Position of this device in its group, if device numbers are known.
    is_partial!       BOOLEAN  True if some members of the group are not in the capture, or not known.
    message_bytes     BIGINT   Message size of this execution on this device (all-gather: the full buffer). [bytes]
    wire_bytes        BIGINT   Bytes that this device sends under the algorithm that main.traffic names. [bytes]
    dtype             VARCHAR  Element type of the message.
    is_async!         BOOLEAN  True if it is split into a start and a done.
    start_ps          BIGINT   Start of the window: of the op, or of the start half; NULL in a program. [ps]
    end_ps            BIGINT   End of the window: of the op, or of the done half; NULL in a program. [ps]
    exposed_ps        BIGINT   Part of the window in which the op line runs a collective, a start or a done; NULL in a
        program. [ps]
    exposed_added_ps  BIGINT   Part of its op, or of its start and its done, in which no earlier communication runs on
        the op line. The sum over a device is its exposed communication. NULL in a program. [ps]
    exposed_done_ps   BIGINT   Part of exposed_added_ps in the done; NULL if it has no done in the capture. [ps]
    hidden_ps         BIGINT   Part of the window in which the device runs other ops; in the rest it communicates or is
        idle. NULL in a program. [ps]
    window_source!    VARCHAR  How the window was found: op, start/done pair, async line, start only, fused op (the
        collective is part of an op), or program (there is no window).
    iteration         INTEGER  Iteration of a loop, as of ops.
    phase             VARCHAR  Phase, as of ops.
    step              INTEGER  Step of the run.
    previous_axis     VARCHAR  Mesh axes of the previous collective: of those that started earlier on the device, the
        one that ends last. NULL for the device's first.
    previous_end_ps   BIGINT   End of the previous collective; NULL for the device's first. [ps]
    previous_phase    VARCHAR  Phase of the previous collective.
    previous_step     INTEGER  Step of the previous collective.
    """,
)

COPIES = _table(
    "copies",
    "One row per copy on a device: an op that copies, or an asynchronous op (not a collective) from its start to "
    "its done. A done ends the latest start of its instruction before it; a half without a partner has no row.",
    """
    event_id*          BIGINT   The event: the op, or the start half of an asynchronous one.
    done_event_id      BIGINT   The done half of an asynchronous one.
    host!              VARCHAR  The host.
    device_id!         INTEGER  The device.
    instruction_id!    INTEGER  The HLO instruction.
    is_async!          BOOLEAN  True if it is split into a start and a done.
    start_ps!          BIGINT   Start of the window: of the op, or of the start half. [ps]
    end_ps!            BIGINT   End of the window: of the op, or of the done half. [ps]
    exposed_added_ps!  BIGINT   Part of the window in which the device neither computes nor communicates and no earlier
        copy is under way. The sum over a device is its exposed copy time. [ps]
    phase              VARCHAR  Phase in which the copy starts, as of ops.
    step               INTEGER  Step in which the copy starts.
    bytes              BIGINT   Bytes of the copied array, as a GPU's event states; NULL if it states none. [bytes]
    """,
)

COLLECTIVE_GROUPS = _table(
    "collective_groups",
    "One row per member of each replica group (or source-target pair) of each collective instruction.",
    """
    instruction_id*  INTEGER  The HLO instruction.
    group_index*     INTEGER  The group or pair, from 0.
    rank*            INTEGER  Position in the group; in a pair, 0 is the source and 1 the target.
    logical_id!      INTEGER  Its logical number in HLO: its place in the program's device assignment.
    device_id        INTEGER  The device of the run; NULL if it is not in the capture.
    """,
)

MESH_AXES = _table(
    "mesh_axes",
    "One row per axis of the device mesh that is longer than 1. The manifest or the user states the axes, or they "
    "are inferred from the groups of collectives.",
    """
    position*    INTEGER  Position of the axis, 0 outermost.
    axis         VARCHAR  pp, dp, ep, tp or sp; NULL if an inferred axis could not be named.
    size!        INTEGER  Devices along the axis. [devices]
    stride!      INTEGER  Difference of the places of neighbours on the axis, as HLO's logical numbers. [devices]
    source!      VARCHAR  How the axis is known: mesh (stated) or inferred.
    confidence!  DOUBLE   Probability that the name of an inferred axis is right; 1 for a stated mesh.
    evidence     VARCHAR  Reasons for an inferred name: collectives along the axis, by kind and part.
    """,
)

TRAFFIC = _table(
    "traffic",
    "Bytes from device to device for one execution of a collective instruction, under a named algorithm.",
    """
    instruction_id*    INTEGER  The HLO instruction.
    source_device_id*  INTEGER  The sender.
    target_device_id*  INTEGER  The receiver.
    algorithm!         VARCHAR  Algorithm model: ring, pairwise (all-to-all) or direct (collective-permute).
    bytes!             BIGINT   Bytes sent in one execution. [bytes]
    """,
)

PHASES = _table(
    "phases",
    "Intervals that say what ran when: phases and steps, per device and on the host's clock.",
    """
    host!      VARCHAR  The host.
    device_id  INTEGER  The device; NULL for an interval on the host.
    kind!      VARCHAR  phase, step, module, layer, microbatch or annotation.
    name!      VARCHAR  prefill, decode, mixed (both in one batch), or the module's or annotation's name.
    index      INTEGER  Number of a step; other intervals are counted from 0.
    start_ps!  BIGINT   Start since the run's profile start. [ps]
    end_ps!    BIGINT   End, exclusive. [ps]
    source!    VARCHAR  Where it comes from. Executions: module run, launches (of a GPU's kernels), op line (inferred).
        Steps: step line, launches (what the host launched under a mark), marker, module name, server call, program
        (begins a step), told program (named by the user), manifest; or that of another device.
    """,
)

STEP_BATCHES = _table(
    "step_batches",
    "One row per batch that a server scheduled, as vLLM on TPU writes them beside its captures. The k-th batch "
    "belongs to the k-th step. The server stops the profiler before its last batch, which therefore has no step.",
    """
    rank*             INTEGER  Rank of the server, from the name of its files or folder.
    position*         INTEGER  Position of the batch among those of the rank, from 0.
    step              INTEGER  The step that ran the batch; NULL if none in the capture did, or if not known.
    batch_id          BIGINT   The server's number for the batch.
    kind              VARCHAR  prefill_only, prefill_heavy, balanced, decode_heavy, decode_only or ambiguous.
    scheduled_tokens  BIGINT   Scheduled tokens. [tokens]
    prefill_tokens    BIGINT   Scheduled tokens of prompts. [tokens]
    decode_tokens     BIGINT   Scheduled tokens of requests that generate. [tokens]
    padded_tokens     BIGINT   Computed tokens, including padding. [tokens]
    requests          BIGINT   Requests in the batch. [requests]
    min_kv_length     BIGINT   Shortest context among the requests. [tokens]
    """,
)

HOST_EVENTS = _table(
    "host_events",
    "One row per event of a host thread (TraceMe), and of every other plane that belongs to no device.",
    """
    event_id*     BIGINT   The event, counted over the run in file order.
    host!         VARCHAR  The host.
    plane!        VARCHAR  The profiler's plane name.
    thread!       VARCHAR  The profiler's line name.
    thread_id!    BIGINT   The profiler's line id.
    name!         VARCHAR  The event's name.
    start_ps!     BIGINT   Start since the run's profile start. [ps]
    duration_ps!  BIGINT   Duration. [ps]
    """,
)

COUNTERS = _table(
    "counters",
    "One row per sample of a counter.",
    """
    event_id*  BIGINT   The event that carries the sample.
    name*      VARCHAR  The counter, with its series if it has several.
    host!      VARCHAR  The host.
    plane!     VARCHAR  The profiler's plane name.
    device_id  INTEGER  The device, on device planes.
    start_ps!  BIGINT   Time of the sample since the run's profile start. [ps]
    value      DOUBLE   The sample; NULL if it is not a number.
    """,
)

EVENT_STATS = _table(
    "event_stats",
    "One row per stat of an event that has no column of its own, so that nothing of the capture is lost.",
    """
    event_id*  BIGINT   The event, in ops or host_events.
    name*      VARCHAR  The stat's name.
    """
    + _STAT_VALUE,
)

INSTRUCTION_STATS = _table(
    "instruction_stats",
    "One row per stat of an event's metadata that has no column of its own.",
    """
    instruction_id*  INTEGER  The instruction.
    name*            VARCHAR  The stat's name.
    """
    + _STAT_VALUE,
)

PLANE_STATS = _table(
    "plane_stats",
    "One row per stat of a plane, such as device_type_string or profile_start_time.",
    """
    plane_index*  INTEGER  The plane, in planes.
    host!         VARCHAR  The host.
    plane!        VARCHAR  The plane's name.
    name*         VARCHAR  The stat's name.
    """
    + _STAT_VALUE,
)

METADATA_STATS = _table(
    "metadata_stats",
    "What event metadata says beyond instructions. On host planes: all stats (including the compiler's Hlo "
    "Protos), display_name and metadata. On every plane: child_id, once per child.",
    """
    plane_index*  INTEGER  The plane, in planes.
    metadata_id*  BIGINT   The profiler's id of the metadata, or its position if the format has no ids.
    index*        INTEGER  Position of the value in the metadata.
    event!        VARCHAR  Name that the metadata gives its events.
    name!         VARCHAR  The stat's name; for a child_id, string_value is the child's name.
    """
    + _STAT_VALUE,
)

STAT_METADATA = _table(
    "stat_metadata",
    "One row per stat that the capture describes.",
    """
    plane_index*  INTEGER  The plane, in planes.
    stat_id*      BIGINT   The profiler's id of the stat.
    name!         VARCHAR  The stat's name.
    description!  VARCHAR  What the stat means, in the profiler's words.
    """,
)

PREDICTIONS = _table(
    "predictions",
    "One row per step of a predicted run: what was compiled, for which slice, and by which rules it was timed.",
    """
    phase*             VARCHAR  prefill or decode.
    program_digest!    VARCHAR  SHA-256 of the compiled program.
    topology!          VARCHAR  The slice as libtpu names it, such as v6e:2x4.
    compiler           VARCHAR  Version of libtpu that compiled it.
    rules_version!     INTEGER  Version of the rules that gave the times.
    layers             INTEGER  Layers of the whole model, for which the times stand. [layers]
    compiled_layers    INTEGER  Layers that were compiled; a steady one is repeated for the others. [layers]
    steady_spread      DOUBLE   Longest over shortest of the steady layers, less 1; NULL if nothing is repeated. [ratio]
    context_tokens     INTEGER  Tokens that each sequence attends to in the step. [tokens]
    clock_hz           DOUBLE   Clock of the chip, by which cycles became time. [Hz]
    hbm_gbps           DOUBLE   Memory bandwidth that the rules count with, what-if included. [GB/s]
    product_factor     DOUBLE   Time of compute-bound products over what the compiler's cycles say. [ratio]
    link_gbps          DOUBLE   Rate of one link in one direction that the rules count with, what-if included. [GB/s]
    hbm_factor!        DOUBLE   What-if: memory bandwidth over the real chip's; 1 for the real chip. [ratio]
    ici_factor!        DOUBLE   What-if: rate of the links over the real ones; 1 for the real ones. [ratio]
    kernels            VARCHAR  What-if: times of kernels that replace the rules', as JSON, name to microseconds; NULL
        without any.
    measured_kernels   VARCHAR  Kernels that take the median of a recorded run, as a JSON list: kernel, signature, us,
        low_us, high_us (10th and 90th percentile), n, run_id, run. NULL without any.
    host_ps!           BIGINT   Time of the host for each step, as the user gave or measured it. [ps]
    chip_price_usd_per_h DOUBLE  What-if: price of a chip for an hour in place of the list price; NULL for that. [USD/h]
    calibration        VARCHAR  The calibrations that the rules used, in words; NULL for those that come with
        tracewarehouse.
    argument_bytes     BIGINT   Memory of a device for weights, caches and inputs, of the whole model. [bytes]
    output_bytes       BIGINT   Memory for results that no argument's memory holds. [bytes]
    temporary_bytes    BIGINT   Memory for intermediate values. [bytes]
    program_bytes      BIGINT   Memory for the program itself. [bytes]
    capacity_bytes     BIGINT   Memory of a device. [bytes]
    """,
)

METRIC_VALUES = _table(
    "metric_values",
    "One row per metric value of the run, evaluated from the views at ingest. Metrics of single ops are not stored.",
    """
    metric*       VARCHAR  The metric.
    version*      INTEGER  Its version.
    dimensions*   VARCHAR  The row's other grain columns as a JSON object, with keys in the order of the grain.
    value!        DOUBLE   The value; rows without one are not stored.
    unit!         VARCHAR  Unit of the value.
    fingerprint!  VARCHAR  Fingerprint of the SQL that made it.
    """,
)

TABLES: dict[str, Table] = {
    t.name: t
    for t in (
        RUNS, QUALITY_FLAGS, HOSTS, DEVICES, PLANES, LINES, INSTRUCTIONS, OPS, COLLECTIVES, COPIES, COLLECTIVE_GROUPS,
        MESH_AXES, TRAFFIC, PHASES, PREDICTIONS, STEP_BATCHES, HOST_EVENTS, COUNTERS, EVENT_STATS, INSTRUCTION_STATS,
        PLANE_STATS, METADATA_STATS, STAT_METADATA, METRIC_VALUES,
    )
}  # fmt: skip
"""All tables by name, in the order in which they are documented."""
