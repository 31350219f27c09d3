"""Knows the names that profilers give planes, lines, kernels and the events that ingest looks for.

Planes, lines and kernels have a table for each backend. A name that no table has is of unknown kind. A reader of
another profiler's traces adds its names to the table of its backend.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

CPU_PLANE = "/host:CPU"
"""Plane of the host's threads, including those that execute the ops of virtual CPU devices."""
TASK_PLANE = "Task Environment"
"""Plane whose stats say when the profile was taken."""
METADATA_PLANE = "/host:metadata"
"""Plane that holds the compiled programs."""
PREDICTION_PLANE, PREDICTION = "Prediction", "prediction"
"""Plane of a predicted capture, and its stat that says what was predicted, as JSON."""
PROFILE_START, PROFILE_STOP = "profile_start_time", "profile_stop_time"
"""Stats with the start and stop of the profile, in Unix nanoseconds."""
DEVICE_PREFIX, GPU_PREFIX = "/device:", "/device:GPU:"

MODULE_LINE = "XLA Modules"
"""Line of the executions of programs."""
STEP_LINE = "Steps"
OP_LINE = "XLA Ops"
"""Line of the ops that the device executes, one after the other."""
ASYNC_LINE = "Async XLA Ops"
"""Line of asynchronous ops, from their start to their done."""
COUNTER_LINE = "_counters_"
"""Line of samples of counters, in a Chrome trace."""
STREAM_PREFIX = "Stream #"
"""Prefix of the lines of a GPU's streams."""
LAUNCH_LINE = "Launches"
"""Line of what a host launched on a GPU: replays of a CUDA graph, and the kernels of a step between them."""

STEP_MARKS = (
    r"ProfilerStep\s*#\s*(?P<number>\d{1,9})",
    r"execute_(?:\d+_)?context_(?P<contexts>\d{1,9})\((?:sq)?(?P<context_tokens>\d{1,12})(?:[_s][^()]*)?\)"
    r"_generation_(?P<generations>\d{1,9})\((?:sq)?(?P<generation_tokens>\d{1,12})(?:[_s][^()]*)?\)",
    r"step\[(?P<mode>[A-Z_]+) bs=(?P<batch>\d{1,9})(?: toks=(?P<tokens>\d{1,12}))?[^\]]*\]",
    r"(?i:train(?:ing)?[_ ])?(?i:step|iteration)[_ #:](?P<number>\d{1,9})",
    r"(?P<phase>(?i:prefill|decode))(?:[_ #:]?(?i:step|iter|batch)?[_ #:]*(?P<number>\d{1,9})?)",
)
"""Patterns of whole names of marks, each with what they say of a step; the first that matches counts."""
KERNEL_CLASSES = (
    ("copy", r"(?i)\Amem(?:cpy|set)|^__amd_rocclr_(?:copy|fill)Buffer"),
    ("moe", r"_matmul_ogs_|bmm_MxE4m3|(?i:fused_?moe|moe::|moe_|_moe|topk_?gating|grouped_?gemm)"),
    ("attention", r"(?i)flash|fmha|paged_?attention|attention|sdpa|mla_"),
    ("gemm", r"(?i)nvjet|cutlass|\bcijk_|gemm|gemv|matmul|splitkreduce|xmma"),
    ("norm", r"(?i)(?:layer|rms|batch|group)_?norm|\bbn_"),
)
"""What kernels compute, with a pattern in their names; the first that matches counts."""
AS_TF32 = re.compile(r"tf32|tensorop_s\d+gemm")
"""Kernels that round operands of f32 to TF32; of CUTLASS's, those whose name says no other type."""
IN_F32, ARITHMETIC = re.compile(r"sgemm|simt|ffma"), "arithmetic"
"""Kernels that multiply without matrix units, and the stat that says so: f32, where their operands are."""
PRODUCT_OPERATORS = {
    "aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::matmul": (0, 1), "aten::linear": (0, 1), "aten::mv": (0, 1),
    "aten::_int_mm": (0, 1), "aten::_scaled_mm": (0, 1), "aten::addmm": (1, 2, 0), "aten::baddbmm": (1, 2, 0),
    "aten::addmv": (1, 2, 0), "aten::_addmm_activation": (1, 2, 0),
}  # fmt: skip
"""PyTorch's operators that multiply matrices: places of both among their inputs, and of what they add."""
ELEMENTWISE_OPERATORS = {
    f"aten::{name}{own}": (count, flops)
    for count, flops, names in (
        (1, 1, "abs clamp_min neg reciprocal relu"),
        (1, None, "exp gelu log rsqrt sigmoid silu sqrt tanh"),
        (2, 1, "add div maximum minimum mul sub"),
        (2, None, "gelu_backward sigmoid_backward silu_backward tanh_backward"),
    )
    for name in names.split()
    for own in ("", "_")
}
"""Those that compute each element of the result from one of each of their first inputs: how many inputs they read, and
operations for an element, as XLA counts them; None where it counts transcendental functions apart."""
WRITING_OPERATORS = {"aten::fill_": (0,), "aten::copy_": (0, 1)}
"""Those whose result is as large as the first input, with the inputs that they write or read."""
OPERATOR_SHARE = "operator share"
"""Stat of each of several kernels that one call of these operators launched: `all` of the one that computes the
product, and `none` of the others."""
JOINS_PARTS = re.compile(r"(?i)split_?k_?reduce|reduce_?split_?k|reduce_1block_kernel")
"""Kernels that add up the parts of a product, which another kernel computed."""
GRAPH_LAUNCH = re.compile(r"(?i)(?:cu|hip|cuda)GraphLaunch")
"""Calls that replay a CUDA or HIP graph."""
COLLECTIVE_MARK = re.compile(r"(?:nccl|c10d|gloo|ucc):\w")
"""Marks around the launch of a collective, such as nccl:all_reduce."""
COALESCED_MARK = "nccl:coalesced"
"""Mark around the launch of one kernel for all calls before it that only said what they want."""
LAYER_SCOPE = re.compile(r"(?i)(?<![a-z0-9])(?:layers?|blocks?|h)[._ /]?\d{1,5}(?![a-z0-9])")
"""Marks around the work of a layer."""
LAUNCH_STEP, LAUNCH_EXECUTION = "launch_step", "launch_execution"
"""Stats of a GPU's ops whose launch is known: the number of their step, and of their execution on the device; -1 for
none."""

OWN_STATS = ("device_offset_ps", "device_duration_ps")
"""Stats of device events that are columns of main.ops."""
PREDICTED_STATS = {
    "predicted_basis": "basis",
    "predicted_low_ps": "low_ps",
    "predicted_high_ps": "high_ps",
    "predicted_is_extrapolated": "is_extrapolated",
    "predicted_link_ps": "link_ps",
}
"""Stats of predicted device events, and the columns of main.ops that hold them."""

RANK, WORLD_SIZE = "rank", "world_size"
"""Stats of a GPU's plane: the rank of the process that used it, and how many ranks its job has."""
SEQUENCE = "Seq"
"""Stat of a GPU's collective: its number in its process group, the same on all ranks."""

EXECUTE = "PjRtCpuExecutable::Execute"
"""An execution of a program on virtual CPU devices; below it are those of its threads."""
EXECUTE_SHARDED = "PjRtCpuExecutable::ExecuteSharded"
EXECUTE_HELPER = "PjRtCpuExecutable::ExecuteHelper"
RECORD = "ThreadpoolListener::Record"
START_REGION = "ThreadpoolListener::StartRegion"
STOP_REGION = "ThreadpoolListener::StopRegion"
THUNKS = "ThunkExecutor::Execute"
"""Beginning of the names of events in which a device runs its program."""

SERVER_LOOP = re.compile(
    r"(?:\A|[ .:$])(?:step_with_batch_queue|step_fn|engine_step|run_batch|execute_model|generate_step|decode_step"
    r"|prefill_step)(?:\(|\Z)"
)
"""Calls in the loop of a server, vLLM or SGLang. Frames of the Python tracer end in the function's name."""
SERVER_ENGINE = re.compile(r"\A\$?\w*engine\w*\.py:\d+ (?:generate|prefill)\Z", re.IGNORECASE)
"""Calls of JetStream and MaxText, whose threads prefill and generate at the same time."""
LINKED = re.compile(r"\APJRT_LoadedExecutable_Execute linkage\Z")
JITTED = re.compile(r"\APjitFunction\(.+\)\Z")
ENQUEUED = "DoEnqueueProgram"
"""The runtime's dispatch of an execution to a TPU."""

_COMPILES = re.compile(r"(?:\A|::|XLA|Xla|[_ ])[Cc]ompile(?:AndLoad|CpuExecutable|AheadOfTime\w*)?(?!\w)")
_NO_COMPILES = re.compile(r"\A[$<]|before_compile|\.py\(\d+\): ")

_Kinds = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class BackendNames:
    """The names on one backend.

    Attributes:
        planes: patterns of whole names of planes, each with its kind; the first that matches counts.
        lines: the same for lines.
        collectives: patterns of the beginnings of kernels' names, each with the kind of collective; None if such a
            kernel serves several kinds.
        copies: pattern of the whole names of copies by the driver.
        sets: the same of what fills memory with one value.
    """

    planes: _Kinds = ()
    lines: _Kinds = ()
    collectives: tuple[tuple[str, str | None], ...] = ()
    copies: str = ""
    sets: str = ""


def _nccl(words: str) -> str:
    """Return the pattern of the kernels of NCCL and RCCL whose name has one of some words in the place of the kind."""
    return rf"(?i:(?:void )?(?:nccl|rccl)(?:Symk?)?(?:Dev)?Kernel_(?:{words}))(?![A-Za-z])"


_SCOPES = r"(?:void )?(?:[A-Za-z_]\w*::|\(anonymous namespace\)::)*"
"""Pattern of the namespaces before a kernel's own name."""

TPU = BackendNames(
    planes=(
        (r"/device:TPU:\d+", "device"),
        (r"/device:TPU:\d+ SparseCore \d+", "sparse_core"),
        (r"/device:CUSTOM:Megascale.*", "megascale"),
        (r"/device:CUSTOM:.*", "custom"),
        (r"#Chip.*|/device:TPU:\d+ ?#Chip.*", "chip"),
        (r"/host:TPU-runtime", "host"),
    ),
    lines=(
        (rf"{MODULE_LINE}|Sparse Core Modules", "modules"),
        (rf"{OP_LINE}|Sparse Core Ops", "ops"),
        (ASYNC_LINE, "async_ops"),
        (rf"{STEP_LINE}|Sparse Core Steps", "steps"),
        (r"XLA TraceMe", "trace_me"),
        (r"counters_\d+", "counters"),
        (r"Framework Name Scope|Framework Ops|TensorFlow Name Scope|TensorFlow Ops", "framework"),
        (r"Source code", "source"),
        (r"Host Offload Ops", "offload"),
        (r"Tensor Core Sync Flag|Sparse Core Syncs", "sync_flags"),
        (r"Overlay|TC Overlay|SC Overlay", "overlay"),
        (r"Scalar Unit|.*\bLLO\b.*", "llo"),
        (r"DcnHostTraffic|DcnCollectiveTraffic|.*\bDCN\b.*", "dcn"),
    ),
)
GPU = BackendNames(
    planes=((r"/device:GPU:\d+", "device"), (r"/host:CUPTI|/host:ROCTRACER|/host:NVTX-CUPTI", "host")),
    lines=((rf"{STREAM_PREFIX}.*", "ops"), (r"Launch Stats", "launch"), (LAUNCH_LINE, "modules")),
    collectives=(
        (_nccl("AllGather"), "all-gather"),
        (_nccl("AllReduce"), "all-reduce"),
        (_nccl("AllToAll|AllToAllPivot|AlltoAll"), "all-to-all"),
        (_nccl("Broadcast"), "collective-broadcast"),
        (_nccl("Reduce"), "reduce"),
        (_nccl("ReduceScatter"), "reduce-scatter"),
        (_nccl("SendRecv"), "send"),
        (_nccl("Generic|GenericOp"), None),
        (r"(?:void )?mscclKernel_[A-Za-z]", None),  # of RCCL's own algorithms
        (r"(?:void )?stream_executor::gpu::AllReduceKernelImpl<", "all-reduce"),
        # communication without NCCL: of PyTorch's symmetric memory, vLLM, SGLang, AITER, TensorRT-LLM and FlashInfer
        (rf"{_SCOPES}(?i:(?:multimem_|lamport_style_|one_?shot_?|two_?shot_?)+all_?reduce)", "all-reduce"),
        (rf"{_SCOPES}(?:multimem_)?all_gather_kernel", "all-gather"),
        (rf"{_SCOPES}cross_device_reduce_\w", "all-reduce"),
        (rf"{_SCOPES}reduce_scatter_cross_device\w*", "reduce-scatter"),
        (rf"{_SCOPES}all_?reduce_(?:fusion|norm|rms)\w*", "all-reduce"),
        # dispatch and combine of experts; their layout and their casts are local
        (r"(?:void )?deep_ep::\w+::(?:cached_)?(?:notify_)?(?:dispatch|combine)(?![a-z])", "all-to-all"),
        (r"(?:void )?(?:nvshmemi?|rocshmemi?)(?:x?_|::)\w", None),
    ),
    copies=r"(?i:memcpy)[A-Za-z0-9]*|Memcpy \w+ \([^()]*\)|__amd_rocclr_copyBuffer\w*(?:\.kd)?",
    sets=r"(?i:memset)[A-Za-z0-9]*|Memset \([^()]*\)|__amd_rocclr_fillBuffer\w*(?:\.kd)?",
)
CPU = BackendNames(
    planes=(
        (rf"{CPU_PLANE}|/host:python-tracer|Host CPUs|Syscalls|/host:tfstreamz", "host"),
        (rf"{METADATA_PLANE}|/host:__ScopeRangeCallStack__", "metadata"),
        (TASK_PLANE, "task"),
        (PREDICTION_PLANE, "prediction"),
    ),
    lines=((COUNTER_LINE, "counters"),),
)
BACKENDS = (GPU, TPU, CPU)

PLANE_KINDS = (*dict.fromkeys(kind for b in BACKENDS for _, kind in b.planes), "unknown")
LINE_KINDS = (*dict.fromkeys(kind for b in BACKENDS for _, kind in b.lines), "thread", "unknown")
_PLANES = [(re.compile(pattern), kind) for b in BACKENDS for pattern, kind in b.planes]
_LINES = [(re.compile(pattern), kind) for b in BACKENDS for pattern, kind in b.lines]
_COLLECTIVES = [(re.compile(pattern, re.ASCII), kind) for b in BACKENDS for pattern, kind in b.collectives]
_COPIES = [re.compile(b.copies) for b in BACKENDS if b.copies]
_SETS = [re.compile(b.sets) for b in BACKENDS if b.sets]
_DEVICE_PLANE = re.compile(r"/device:(TPU|GPU):(\d+)( SparseCore \d+)?")
_NUMBER = re.compile(r"(?:-start)?(?:\.\d+|\.clone)*")
UNKNOWN_COLLECTIVE = "unknown"
"""The kind of a collective whose kernel serves several kinds, where nothing else tells."""


@dataclass(frozen=True, order=True)
class DeviceName:
    """The facts in the name of a device plane."""

    backend: str
    ordinal: int
    is_sparse_core: bool


def device_plane(name: str) -> DeviceName | None:
    """Read backend, ordinal on the host, and whether it is a SparseCore; None for planes of no device."""
    match = _DEVICE_PLANE.fullmatch(name)
    if not match or len(match[2]) > 6:
        return None
    return DeviceName(match[1].lower(), int(match[2]), match[3] is not None)


def plane_kind(name: str) -> str:
    """Return one of PLANE_KINDS."""
    return next((kind for pattern, kind in _PLANES if pattern.fullmatch(name)), "unknown")


def line_kind(plane: str, name: str) -> str:
    """Return one of LINE_KINDS; by default, lines of host planes are threads, and lines of Megascale planes dcn."""
    kind = next((kind for pattern, kind in _LINES if pattern.fullmatch(name)), None)
    return kind or {"host": "thread", "megascale": "dcn"}.get(plane_kind(plane), "unknown")


@lru_cache(maxsize=1 << 12)
def collective_kind(kernel: str, op: str, kinds: frozenset[str]) -> str | None:
    """Return the kind of collective that a kernel executes; None for any other kernel.

    A kernel that sends and receives, or a generic one, serves several kinds. Then the name of the HLO op decides, which
    XLA derives from its opcode. Without such a name, a kernel that sends and receives counts as a send, and the kind of
    a generic one is unknown.
    """
    found = [kind or UNKNOWN_COLLECTIVE for pattern, kind in _COLLECTIVES if pattern.match(kernel)]
    if not found or found[0] not in (UNKNOWN_COLLECTIVE, "send"):
        return found[0] if found else None
    return next((k for k in kinds if op.startswith(k) and _NUMBER.fullmatch(op[len(k) :])), found[0])


@lru_cache(maxsize=1 << 12)
def is_memcpy(kernel: str) -> bool:
    """Return whether an event of a stream is a copy by the driver, such as MemcpyD2H."""
    return any(pattern.fullmatch(kernel) for pattern in _COPIES)


@lru_cache(maxsize=1 << 12)
def is_memset(kernel: str) -> bool:
    """Return whether an event of a stream fills memory with one value, such as Memset."""
    return any(pattern.fullmatch(kernel) for pattern in _SETS)


@lru_cache(maxsize=1 << 12)
def is_compilation(event_name: str) -> bool:
    """Whether a host event of this name is the compilation of a program.

    Examples are TfrtTpuCompiler::Compile, backend_compile and PjRtComputationClient::Compile. Frames of the Python
    tracer, `$file.py:line function`, do not count: importing `re` compiles too.
    """
    return bool(_COMPILES.search(event_name)) and not _NO_COMPILES.search(event_name)
