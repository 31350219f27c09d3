"""Shortens names of GPU kernels for charts: C++ templates and names of tiles take hundreds of letters.

A short name is the function without namespaces and arguments. What a generic function such as an elementwise kernel
computes stands in its template's arguments, and follows in brackets. Other names stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

_LONGEST = 44
_FRAME = re.compile(r"(?:device_)?[kK]ernel\d?|kentry")
"""Functions whose names say nothing: their argument stands for them."""
_GENERIC = re.compile(rf"elementwise|\Areduce_kernel|multi_tensor_apply|trampoline|\A(?:{_FRAME.pattern})\Z")
_FUNCTOR = re.compile(r"(?:::|\A|[<, ])([A-Za-z_]\w{3,})(?=[<(>,]|\Z)")
_EMPTY = re.compile(
    r"(?:gpu_kernel_impl(?:_nocast)?|(?:Binary|AUnary|BUnary)Functor|ReduceOp|TensorListMetadata|TensorIteratorBase|operator|func_wrapper_t|gpu_index_kernel|lambda|const|unsigned|float"
    r"|double|bool|true|false|void|long|short|char|half|BFloat16|Half|wrapped_\w+|default_config|array|__hip_bfloat16|__half)\Z"
)
"""Arguments of templates that do not tell what a kernel computes."""
_TILES = (
    (re.compile(r"\A(nvjet)_(?:sm\d+_)?(?:[a-z]+_)?(\d+x\d+_\d+x\d+).*"), r"\1 \2"),
    (re.compile(r"\A(Cijk_\w+?_[A-Z]+)_.*?_?(MT\d+x\d+x\d+).*"), r"\1 \2"),
    (
        re.compile(r"\A(cudnn)_generated_fort_native_(\w+?)_(?:sm\d+_)?((?:flash|wmma|cudnn)\w*?)_(?:wmma|knob)_.*"),
        r"\1 \2 \3",
    ),
)
"""Names that end in sizes of tiles and settings, with what is kept."""
_RETURNS = re.compile(r"\A(?:void |std::enable_if<[^<>]*>::type )")
_MANGLED = re.compile(r"\A_ZN?K?(?=\d)")
_LENGTH = re.compile(r"[1-9]\d{0,2}")


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return a short name for each name that has one; different names have different short ones."""
    shown: dict[str, str] = {}
    taken: dict[str, int] = {}
    for name in dict.fromkeys(names):
        short = short_name(name)
        if short != name:
            taken[short] = taken.get(short, 0) + 1
            shown[name] = short if taken[short] == 1 else f"{short} ({taken[short]})"
    return shown


def short_label(names: Iterable[str], value: str) -> str:
    """The Vega expression of the short name of a value, itself an expression, or of the value where it has none."""
    short = short_names(names)
    return f"({json.dumps(short)}[{value}] || {value})" if short else value


def short_name(name: str) -> str:
    """Return the short name of a kernel; a name that is short and no template stays."""
    for pattern, kept in _TILES:
        if pattern.match(name):
            return _cut(pattern.sub(kept, name))
    if prefix := _MANGLED.match(name):
        return _cut(_demangled(name, prefix.end()))
    plain = _RETURNS.sub("", name).replace("(anonymous namespace)::", "")
    if plain == name and not re.match(r"[\w:]+[<(]\S", name):
        return _cut(name)
    function = re.split(r"[<(]", plain, maxsplit=1)[0]
    rest = plain[len(function) :]
    function = function.split("::")[-1]
    return _cut(_with_functor(function, _FUNCTOR.findall(rest if rest[:1] == "<" else "")))


def _with_functor(function: str, arguments: Iterable[str]) -> str:
    """Add to a generic function the first argument of its template that tells what it computes."""
    telling = (found for found in arguments if not _EMPTY.match(found)) if _GENERIC.search(function) else iter(())
    functor = next(telling, "")
    if functor and _FRAME.fullmatch(function):
        return functor
    return f"{re.sub('_kernel.*', '', function)} [{functor}]" if functor else function


def _demangled(name: str, at: int) -> str:
    """Return the last part of a mangled name's own path from a place on: each is its length and its letters."""
    parts = [""]
    while length := _LENGTH.match(name, at):
        at = length.end() + int(length[0])
        parts.append(name[length.end() : at])
    inner = [name[m.end() : m.end() + int(m[0])] for m in _LENGTH.finditer(name, at)]
    return _with_functor(parts[-1], [part for part in inner if re.match(r"[A-Z]\w{3}", part)]) or name


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
