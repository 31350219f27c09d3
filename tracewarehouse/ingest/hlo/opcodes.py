"""Classifies HLO opcodes: what the device does during the op, and whether it is half of an asynchronous op."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Literal, Protocol, get_args

if TYPE_CHECKING:
    from tracewarehouse.ingest.hlo.instruction import AsyncRole, Instruction

_SUFFIX = re.compile(r"-(start|update|done)$")
_ROLES: dict[str, AsyncRole] = {"start": "start", "update": "update", "done": "done"}
_NAME_SUFFIX = re.compile(r"(?:\.\d+|\.clone|\.remat\d*)*$")
_MAX_NAME = 256
_SPREAD = re.compile(r"async-collective-(start|done)((?:\.\d+|\.clone|\.remat\d*)*)")
_SPREAD_FUSION = re.compile(r"async_collective_fusion(?:\.\d+|\.clone|\.remat\d*)*")
_ASYNC_NAMES = re.compile(r"(?:(?:async|wrapped)_)+(?P<opcode>[a-z][a-z_]*?)(?:_computation)?")

_WRAPPED = frozenset({
    "all-gather", "all-reduce", "all-to-all", "call", "collective-broadcast", "collective-permute", "copy",
    "custom-call", "dynamic-slice", "dynamic-update-slice", "fusion", "gather", "ragged-all-to-all",
    "reduce-scatter", "scatter", "slice", "sort",
})  # fmt: skip

CARRIES_INNER = frozenset({"fusion", "async-start", "async-update", "async-done"})
"""Opcodes of instructions that stand for the instructions of the computations that they call."""
MAX_UPDATES = 16
"""Most updates that are followed between the start of an asynchronous op and its done."""


def kernel_name(name: str) -> str:
    """Return the kernel's name: that of the instruction, without the numbers that the compiler appends."""
    return _NAME_SUFFIX.sub("", name) if len(name) <= _MAX_NAME else name


def attention_form(kernel: str) -> Literal["flash", "paged", "ragged"] | None:
    """Return which attention a kernel of this name computes: of whole prompts, or over pages; None if it is another."""
    if "flash" in kernel or "splash" in kernel:
        return "flash"
    if "RPA" in kernel or ("paged" in kernel and "ragged" in kernel):
        return "ragged"
    return "paged" if "paged" in kernel else None


OpClass = Literal["container", "communication", "copy", "compute"]
OP_CLASSES: tuple[OpClass, ...] = get_args(OpClass)
"""The classes of ops by what a device does during them; see `op_class`."""

OP_CLASS_RULES: tuple[tuple[OpClass, str], ...] = (
    ("container", "while|conditional|call"),
    ("communication", "collective"),
    ("copy", "copy|send|recv|.*-(?:start|update|done)"),
    ("compute", ".*"),
)
"""A pattern of whole opcodes for each class; the first match counts. 'collective' stands for ops in which
`collective_of` finds one. Released metrics depend on these patterns, so they are part of the fingerprints in
sql/metrics.lock.
"""


@cache
def op_class(opcode: str | None, *, is_collective: bool) -> OpClass:
    """Return the class of an op: whether the device holds other ops, communicates, moves data, or computes.

    An async form is no container: the async-start of a call returns at once, and the called computation runs beside it.
    A fusion is none either: it is one kernel, and its instructions have no events. A transpose or a slice computes,
    because the device executes it as an op. An event that is no instruction counts as compute.
    """
    for name, pattern in OP_CLASS_RULES:
        if is_collective if name == "communication" else re.fullmatch(pattern, opcode or ""):
            return name
    raise AssertionError("the last rule matches every opcode")


class Named(Protocol):
    """What tells the part of an instruction in an asynchronous op."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def opcode(self) -> str: ...  # noqa: D102
    @property
    def operand_names(self) -> tuple[str, ...]: ...  # noqa: D102


def async_role(instruction: Named) -> AsyncRole | None:
    """Return the part of an asynchronous op that an instruction is, as in 'all-gather-start' or 'copy-done'.

    HLO always splits send and recv: the plain opcode starts the transfer, and send-done or recv-done ends it. The TPU
    compiler spreads a collective over fusions; it calls the first 'async-collective-start.N' and the last
    'async-collective-done.N'. See `is_spread_step`.
    """
    if instruction.opcode in ("send", "recv"):
        return "start"
    if is_spread(instruction):
        return "start" if instruction.name.startswith("async-collective-start") else "done"
    match = _SUFFIX.search(instruction.opcode)
    return _ROLES[match[1]] if match else None


def is_spread(instruction: Named) -> bool:
    """True if a fusion is the first or last of those over which the TPU compiler spreads a collective."""
    name = instruction.name
    return instruction.opcode == "fusion" and len(name) <= _MAX_NAME and _SPREAD.fullmatch(name) is not None


def is_spread_step(instruction: Instruction) -> bool:
    """True if a fusion computes while it carries on a collective that other fusions start and end.

    Its computation repeats the collective, but its time is compute time.
    """
    return instruction.opcode == "fusion" and any(
        len(called) <= _MAX_NAME and _SPREAD_FUSION.fullmatch(called) for called in instruction.called
    )


def async_start_name(instruction: Named) -> str | None:
    """Return the operand that an update or done continues: the start, or an update of it.

    The last fusion of a spread collective has the number of the first; its operands come from the fusions between.
    """
    if is_spread(instruction):
        name = instruction.name
        return name.replace("-done", "-start", 1) if name.startswith("async-collective-done") else None
    if async_role(instruction) in ("update", "done") and instruction.operand_names:
        return instruction.operand_names[0] or None
    return None


def base_opcode(opcode: str) -> str:
    """Return the opcode without -start, -update or -done."""
    return _SUFFIX.sub("", opcode)


def async_opcode_by_name(name: str, called: tuple[str, ...]) -> str | None:
    """Return the opcode that an async-start, -update or -done runs, from the name that XLA gives it.

    This is a last resort for text, which names the wrapped computation but not its instruction. XLA calls the
    instruction '<opcode>-start.N' and the computation 'async_<opcode>' or 'wrapped_<opcode>'. Only whole names count.
    """
    role = _SUFFIX.search(stem := _NAME_SUFFIX.sub("", name[:_MAX_NAME]))
    if role and (opcode := stem[: role.start()]) in _WRAPPED:
        return opcode
    for computation in called:
        if len(computation) > _MAX_NAME:
            continue
        match = _ASYNC_NAMES.fullmatch(_NAME_SUFFIX.sub("", computation))
        if match and (opcode := match["opcode"].replace("_", "-")) in _WRAPPED:
            return opcode
    return None
