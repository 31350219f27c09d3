"""The HLO text parser against a parser that reads one character at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.judging import Target
from fuzz.seeds import hlo_texts
from hlo_reference import facts

from tracewarehouse.ingest.hlo.collectives import find_collective
from tracewarehouse.ingest.hlo.instruction import Instruction
from tracewarehouse.ingest.hlo.text import parse_instruction

KINDS = ("none", "truncate", "token", "delete", "insert", "swap", "repeat", "flip", "splice", "soup")
OPCODES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "all-reduce-start",
    "all-gather-start", "all-gather-done", "async-start", "async-done", "send", "recv", "send-done", "fusion", "dot",
    "custom-call", "while", "call", "constant", "parameter", "tuple", "copy-start", "ragged-all-to-all",
)  # fmt: skip
TOKENS = (
    "(", ")", "{", "}", "[", "]", ",", "=", '"', "\\", "\\\"", "/*", "*/", "/*index=1*/", "%", " = ", "<=", "?", "...",
    "...(+3)", "{}", "{{0,1},{1,0}}", "{{0,0}}", "[2,2]<=[4]", "[1,2]<=[2]T(0)", "T(1,0)", "mesh['a'=2] {'a'}",
    "@mesh<a=2>", "device_ids=(0,1)", "f32[2]", "(f32[2], s8[])", "b(f32[8])", "replica_groups=", "channel_id=",
    "metadata={", 'op_name="x"', "source_line=7", "calls=", "ROOT ", "\n", "\0", "\x1b[2J", "é", "٣", "\u202e",
    "99999999999999999999", "0", "-1", "((((", "))))", "token[]", "f32[0,9223372036854775807]", "_xla_send_recv",
    "<script>", "';--",
)  # fmt: skip


class HloTextTarget(Target):
    """Instructions of all forms, whole and damaged; nothing is ever refused, at most it is not an instruction."""

    name = "hlo-text"
    suffix = ".txt"

    def __init__(self, traces: Path | None = None) -> None:
        self._texts = sorted(set(hlo_texts(traces)))[:5000] if traces else []

    def make(self, r: random.Random) -> tuple[str, bytes]:
        kind = r.choice(KINDS)
        if kind == "soup":
            text = "%a = f32[2] add(" * (r.random() < 0.5) + "".join(r.choice(TOKENS) for _ in range(r.randrange(40)))
        else:
            text = r.choice(self._texts) if self._texts and r.random() < 0.3 else instruction(r)
            text = damaged(r, text, kind)
        return kind, text.encode("utf-8", "surrogatepass")

    def read(self, data: bytes) -> Any:
        found = parse_instruction(data.decode("utf-8", "replace"))
        return None if found is None else _plain(found)

    def reference(self, data: bytes) -> Any:
        text = data.decode("utf-8", "replace")
        found = facts(text)
        if found is None:
            return None
        return {
            "name": found.name,
            "opcode": found.opcode,
            "shape": found.shape,
            "operands": found.operands,
            "is_truncated": found.is_truncated,
            "text": text,
            **found.attributes,
        }

    def difference(self, got: Any, want: Any) -> str:
        if got == want:
            return ""
        if got is None or want is None:
            return f"expected {want}, found {got}"
        names = [n for n in want if got[n] != want[n]]
        return "; ".join(f"{n}: expected {want[n]!r:.300}, found {got[n]!r:.300}" for n in names)


def _plain(found: Instruction) -> dict[str, Any]:
    collective = find_collective(found)
    if collective is not None and collective.message_bytes is not None:
        assert 0 <= collective.message_bytes < 1 << 63, "message bytes beyond int64"
    sizes = [found.shape, *(s for s in found.operand_shapes if s)]
    assert all(s.byte_size is None or 0 <= s.byte_size <= 1 << 42 for s in sizes), "a shape beyond the bound"
    shapes = [s.text if s else None for s in found.operand_shapes]
    return {
        "name": found.name,
        "opcode": found.opcode,
        "shape": found.shape.text,
        "operands": list(zip(found.operand_names, shapes, strict=True)),
        "is_truncated": found.is_truncated,
        "text": found.text,
        **{
            n: getattr(found, n)
            for n in (
                "channel_id", "replica_groups", "source_target_pairs", "use_global_device_ids", "is_host_transfer",
                "op_name", "op_type", "source_file", "source_line", "fusion_kind", "called", "custom_call_target",
            )
        },
    }  # fmt: skip


def instruction(r: random.Random) -> str:
    """An instruction as XLA prints them, in all the forms that it has."""
    opcode = r.choice(OPCODES)
    operands = ", ".join(_operand(r) for _ in range(r.randrange(5)))
    if opcode in ("constant", "parameter"):
        operands = r.choice(("0", "{1, 2, 3}", '"text, (x)"', "{{1,2},{3,4}}", "..."))
    attributes = r.sample(_ATTRIBUTES, r.randrange(6))
    text = f"{r.choice(('', 'ROOT ', '  '))}{_name(r)} = {shape(r)} {opcode}({operands})"
    return text + "".join(f", {make(r)}" for make in attributes)


def _name(r: random.Random) -> str:
    return r.choice(("%", "%", "")) + r.choice(
        ("a", "all-reduce.3", "fusion.12.clone", "x$y", "é.1", "ROOT", "1", "<b>")
    )


def shape(r: random.Random, depth: int = 0) -> str:
    if depth < 4 and r.random() < 0.2:
        gap = r.choice(("", " ", "/*index=5*/"))
        return "(" + f",{gap}".join(shape(r, depth + 1) for _ in range(r.randrange(4))) + ")"
    if r.random() < 0.03:
        return f"b({shape(r, depth + 1)})"
    element = r.choice(("f32", "bf16", "s32", "pred", "f8e4m3fn", "s4", "u1", "token", "c128", "f99", "opaque"))
    sizes = r.choice(((), (8,), (1024, 5120), ("<=16", 4), ("?",), (0, 1 << 62), (3, 1, 7), (1 << 31, 1 << 31)))
    layout = r.choice(("", "", "{0}", "{1,0:T(8,128)(2,1)S(1)}", "{}", "{0:D(S)}"))
    return f"{element}[{','.join(map(str, sizes))}]{layout}"


def _operand(r: random.Random) -> str:
    gap = r.choice(("", "", "/*index=5*/", " "))
    name = r.choice(("%x", "%fusion.7", "y", "%a.b", "%é"))
    return gap + (f"{shape(r)} {name}" if r.random() < 0.6 else name) if r.random() < 0.97 else "...(+2)"


def _groups(r: random.Random) -> str:
    n = r.choice((1, 2, 3, 4, 8))
    devices = r.sample(range(16), n) if r.random() < 0.5 else list(range(n))
    size = r.choice([d for d in (1, 2, 4, n) if n % d == 0])
    match r.randrange(6):
        case 0:
            gap = r.choice((",", ", "))
            return (
                "{" + ",".join("{" + gap.join(map(str, devices[i : i + size])) + "}" for i in range(0, n, size)) + "}"
            )
        case 1:
            return r.choice(("{}", "{{}}", "{{0}}", "{{0,0}}", "{{0},{0}}", "{{4294967296}}"))
        case 2:
            sizes = r.choice(([2, 2], [4], [2, 3, 2], [1, 2], [2, 1, 1, 3]))
            order = r.sample(range(len(sizes)), len(sizes))
            total = 1
            for each in sizes:
                total *= each
            left = r.choice((f"{total}", f"1,{total}", f"{total},1", f"2,{total // 2 or 1}"))
            moved = f"T({','.join(map(str, order))})" if r.random() < 0.7 else ""
            return f"[{left}]<=[{','.join(map(str, sizes))}]{moved}"
        case 3:
            axes = [(a, r.choice((1, 2, 3, 4))) for a in "abc"[: r.randrange(1, 4)]]
            ids = ""
            total = 1
            for _, each in axes:
                total *= each
            if r.random() < 0.4:
                ids = ", device_ids=(" + ",".join(map(str, r.sample(range(total), total))) + ")"
            elif r.random() < 0.2:
                ids = f", device_ids=([{total}]T(0))"
            named = r.sample(axes, r.randrange(len(axes) + 1))
            names = [
                f"'{a}'" + (f":({r.choice((1, 2))}){r.choice((1, 2))}" if r.random() < 0.3 else "") for a, _ in named
            ]
            mesh = ",".join(f"'{a}'={n}" for a, n in axes)
            return f"mesh[{mesh}]{ids} {{{','.join(names)}}}"
        case 4:
            return f"@mesh<a=2,b={n}>{r.choice(('', ', device_ids=(0,1)'))} {{{r.choice('ab')}}}"
    return r.choice(("[1,1048576]<=[1048576]", "[2]<=[9999999999]", "nonsense", "mesh", "[1]<=[1]T()", ""))


def _pairs(r: random.Random) -> str:
    n = r.randrange(4)
    return (
        "{" + ",".join(f"{{{i},{(i + 1) % max(n, 1)}}}" for i in range(n)) + "}"
        if r.random() < 0.8
        else "{{0,1},{0,2}}"
    )


def _metadata(r: random.Random) -> str:
    names = ("jit(f)/layer0/attn", "", 'a \\"q\\" b', "x, y) {z", "<script>", "é", "a\\\\")
    parts = [
        f'op_type="{r.choice(names)}"', f'op_name="{r.choice(names)}"', f'source_file="{r.choice(names)}"',
        f"source_line={r.choice((0, 12, 999999999, 9999999999))}", "stack_frame_id=3", 'xop_name="no"',
    ]  # fmt: skip
    return "metadata={" + " ".join(r.sample(parts, r.randrange(len(parts)))) + "}"


_ATTRIBUTES: tuple[Callable[[random.Random], str], ...] = (
    lambda r: f"channel_id={r.choice((0, 1, 7, 10**17, 10**19, -1))}",
    lambda r: f"replica_groups={_groups(r)}",
    lambda r: f"replica_groups={_groups(r)}",
    lambda r: f"source_target_pairs={_pairs(r)}",
    lambda r: f"use_global_device_ids={r.choice(('true', 'false', 'TRUE'))}",
    lambda r: f"is_host_transfer={r.choice(('true', 'false'))}",
    _metadata,
    lambda r: f"kind={r.choice(('kLoop', 'kOutput'))}",
    lambda r: f"calls={r.choice(('%c', 'c', '%async_all_gather', '{%a, %b}', '%wrapped_reduce_scatter.1'))}",
    lambda r: "condition=%cond.1, body=%body.2",
    lambda r: "branch_computations={%b0, %b1}",
    lambda r: "to_apply=%add.2.clone",
    lambda r: "custom_call_target=" + r.choice(('"tpu_custom_call"', '""', '"a\\"b"', '"x,y"', "bare")),
    lambda r: f'frontend_attributes={{_xla_send_recv_source_target_pairs="{_pairs(r)}",_xla_other="x"}}',
    lambda r: f"frontend_attributes={{_xla_send_recv_source_target_pairs={_pairs(r)}}}",
    lambda r: 'backend_config={"note":"a ) and { in a string","list":[1,2]}',
    lambda r: "dimensions={0}, slice={[0:2], [1:3]}, /*comment, here*/ sharding={replicated}",
)


def damaged(r: random.Random, text: str, kind: str) -> str:
    """The text with one kind of damage."""
    if not text:
        return text
    at = r.randrange(len(text))
    match kind:
        case "truncate":
            return text[:at] + r.choice(("", "", "..."))
        case "token":
            return text[:at] + r.choice(TOKENS) + text[at + r.choice((0, 0, 1, 2, 8)) :]
        case "delete":
            return text[:at] + text[at + r.choice((1, 1, 2, 10, 100)) :]
        case "insert":
            junk = "".join(
                chr(r.choice((r.randrange(32, 127), r.randrange(256), 0x2028))) for _ in range(r.randrange(1, 9))
            )
            return text[:at] + junk + text[at:]
        case "swap":
            other = r.randrange(len(text))
            low, high = min(at, other), max(at, other)
            return (
                text[:low] + text[high : high + 12] + text[low + 12 : high] + text[low : low + 12] + text[high + 12 :]
            )
        case "repeat":
            piece = text[at : at + r.choice((1, 3, 12))]
            return text[:at] + piece * r.choice((2, 3, 70, 300)) + text[at:]
        case "flip":
            marks = [i for i, c in enumerate(text) if c in '()[]{},="%<']
            if marks:
                i = r.choice(marks)
                return text[:i] + r.choice('()[]{},="%<') + text[i + 1 :]
        case "splice":
            start = r.randrange(len(text))
            return text[:at] + text[start : start + r.choice((3, 20, 200))] + text[at:]
    return text
