"""What an HLO opcode says of the time of its event: a container, or half of an asynchronous op."""

from __future__ import annotations

import re

from tracewarehouse.ingest.hlo.instruction import AsyncRole, Instruction

_SUFFIX = re.compile(r"-(start|update|done)$")
_ROLES: dict[str, AsyncRole] = {"start": "start", "update": "update", "done": "done"}
_NAME_SUFFIX = re.compile(r"(?:\.\d+|\.clone|\.remat\d*)*$")
_MAX_NAME = 256
_ASYNC_NAMES = re.compile(r"(?:(?:async|wrapped)_)+(?P<opcode>[a-z][a-z_]*?)(?:_computation)?")

_WRAPPED = frozenset(
    {
        "all-gather",
        "all-reduce",
        "all-to-all",
        "call",
        "collective-broadcast",
        "collective-permute",
        "copy",
        "custom-call",
        "dynamic-slice",
        "dynamic-update-slice",
        "fusion",
        "gather",
        "ragged-all-to-all",
        "reduce-scatter",
        "scatter",
        "slice",
        "sort",
    }
)


def is_container(opcode: str) -> bool:
    """True where the event of an instruction holds the events of the instructions that it runs.

    Not for the async forms: async-start of a call returns at once, and the called computation runs beside it.
    Not for a fusion: it is one kernel, and its instructions have no events.
    """
    return opcode in ("while", "conditional", "call")


def async_role(instruction: Instruction) -> AsyncRole | None:
    """Which part of an asynchronous op an instruction is, collective or not: 'all-gather-start', 'copy-done'.

    HLO always splits send and recv: the opcode itself starts the transfer, send-done and recv-done end it.
    """
    if instruction.opcode in ("send", "recv"):
        return "start"
    match = _SUFFIX.search(instruction.opcode)
    return _ROLES[match[1]] if match else None


def is_copy(instruction: Instruction) -> bool:
    """Whether an instruction that is no collective moves data: a copy, or half of an asynchronous op."""
    return instruction.opcode == "copy" or async_role(instruction) is not None


def async_start_name(instruction: Instruction) -> str | None:
    """For an update or done: name of the operand that it continues, the start itself or an update of it."""
    if async_role(instruction) in ("update", "done") and instruction.operand_names:
        return instruction.operand_names[0] or None
    return None


def base_opcode(opcode: str) -> str:
    """The opcode without -start, -update or -done."""
    return _SUFFIX.sub("", opcode)


def async_opcode_by_name(name: str, called: tuple[str, ...]) -> str | None:
    """What an async-start, -update or -done runs, by the names that XLA gives.

    A last resort for text, which names the wrapped computation but not its instruction: XLA calls the instruction
    '<opcode>-start.N' and the computation 'async_<opcode>' or 'wrapped_<opcode>'. Only whole names count.
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
