"""The reader of workload cards against PyYAML's own tree and the types of the card's fields."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from fuzz.judging import Target, UnknownError, scratch_file
from fuzz.seeds import capture_files

from tracewarehouse.ingest.capture.card import WorkloadCard, dump_card, load_card
from tracewarehouse.ingest.tables.run_row import card_facts

KINDS = ("none", "none", "value", "value", "key", "truncate", "flip", "insert", "delete", "splice", "token", "bomb")
VALUES: tuple[Any, ...] = (
    None, "", "text", 0, 1, -1, 1 << 63, -(1 << 64), 10**30, 1.5, float("inf"), float("nan"), True, [], [1, "a"], {},
    {"a": {"b": 1}}, "12", "1e3", "2024-01-01", b"\xff", "<script>", "\u202e", "\x1b[2J", "a\nb", "';--",
)  # fmt: skip
TOKENS = (
    "&a ", "*a", "<<: *a", "!!python/object/apply:os.system ['true']", "!!int ", "!!binary ", "!x ", "? ", "- ", ": ",
    "{", "}", "[", "]", "'", '"', "|\n", ">\n", "#", "---\n", "...\n", "%YAML 9.9\n", "\t", "\0", "\ufeff", "\x85",
    "1:2:3", "0x1F", "0o17", "1_000", ".inf", "~", "2001-12-14t21:59:43.10-05:00", "2001-99-99", "!!timestamp x",
    "9" * 5000, "yes", "=", "<<", "\\", "@", "`",
)  # fmt: skip
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
INT64_MAX = (1 << 63) - 1


class CardTarget(Target):
    """Cards of the repository's captures with other values, and damaged as text."""

    name = "card"
    suffix = ".yaml"

    def __init__(self, traces: Path | None = None) -> None:
        self._path = scratch_file(self, "card.yaml")
        self._cards = [f.read_text() for f in capture_files(traces, "card.yaml")]

    def make(self, r: random.Random) -> tuple[str, bytes]:
        kind = r.choice(KINDS)
        if kind == "bomb":
            return kind, _bomb(r).encode()
        text = r.choice(self._cards)
        if kind in ("value", "key"):
            tree = yaml.safe_load(text)
            for _ in range(r.choice((1, 1, 2, 5))):
                parent, key = r.choice(list(_places(tree)))
                if kind != "value" or key not in parent:
                    key = r.choice(("tp", "extra", "", "<<", "ModelExecutor", "version", 1, None, "a\nb"))
                # a copy, or a later input would change the value itself, and put it into itself
                parent[key] = deepcopy(r.choice(VALUES))
            text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=r.random() < 0.5)
        elif kind != "none":
            text = _damaged(r, text, kind)
        return kind, text.encode("utf-8", "surrogatepass") if r.random() < 0.99 else text.encode("utf-16")

    def read(self, data: bytes) -> Any:
        self._path.write_bytes(data)
        card = load_card(self._path)
        facts = card_facts(card)
        assert all(not isinstance(v, int) or abs(v) <= INT64_MAX for v in facts.values()), "a fact beyond int64"
        if len(data) % 8:  # PyYAML is slow
            return card
        dump_card(card, self._path)
        assert _same(load_card(self._path), card), "a card that is written and read again is another"
        return card

    def reference(self, data: bytes) -> Any:
        try:
            tree = yaml.load(data.decode(), _LOADER)
        except (AttributeError, LookupError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise UnknownError("no YAML") from error
        if not isinstance(tree, dict):
            raise UnknownError("no mapping")
        return tree

    def difference(self, got: WorkloadCard, want: dict[Any, Any]) -> str:
        """Fields whose value already has the type of the field must be what YAML says; the others are pydantic's."""
        for place, expected in _fields(want):
            found: Any = got
            for key in place:
                found = _member(found, key)
            if type(found) is type(expected) and found != expected and found == found:
                return f"{'.'.join(map(str, place))}: expected {expected!r:.200}, found {found!r:.200}"
        return ""

    def may_refuse(self, data: bytes, want: Any, refusal: str) -> str:
        return "a card's rules" if "not a valid workload card" in refusal or "cannot be read" in refusal else ""


def _member(value: Any, key: Any) -> Any:
    if isinstance(value, dict):
        return value.get(key)
    return getattr(value, "model_executor" if key == "Model-executor" else str(key), None)


def _same(a: WorkloadCard, b: WorkloadCard) -> bool:
    return repr(a) == repr(b)


def _fields(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for key, value in tree.items() if isinstance(tree, dict) and len(at) < 6 else ():
        if isinstance(value, dict):
            yield from _fields(value, (*at, key))
        else:
            yield (*at, key), value


def _places(tree: dict[Any, Any]) -> Iterator[tuple[dict[Any, Any], Any]]:
    for key, value in tree.items():
        yield tree, key
        if isinstance(value, dict):
            yield from _places(value)


def _damaged(r: random.Random, text: str, kind: str) -> str:
    at = r.randrange(len(text))
    match kind:
        case "truncate":
            return text[:at]
        case "flip":
            return text[:at] + chr(r.choice((r.randrange(128), *b":-{}[]&*!|>'\"\n\t #"))) + text[at + 1 :]
        case "insert":
            return text[:at] + "".join(chr(r.randrange(256)) for _ in range(r.randrange(1, 8))) + text[at:]
        case "delete":
            return text[:at] + text[at + r.choice((1, 2, 30)) :]
        case "splice":
            start = r.randrange(len(text))
            return text[:at] + text[start : start + r.choice((5, 50, 300))] + text[at:]
    lines = text.split("\n")
    i = r.randrange(len(lines))
    lines[i] = lines[i] + r.choice(TOKENS) if r.random() < 0.5 else lines[i].split(":")[0] + ": " + r.choice(TOKENS)
    return "\n".join(lines)


def _bomb(r: random.Random) -> str:
    """Small texts that stand for something huge, or that are deeper than they look."""
    n = r.choice((5, 9, 30))
    match r.randrange(6):
        case 0:  # the billion laughs
            rows = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
            rows += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, n)]
            return "\n".join(rows)
        case 1:
            return "workload: " + "{a: " * (n * 30) + "1" + "}" * (n * 30)
        case 2:
            return "version: " + "9" * r.choice((100, 4000, 20_000))
        case 3:
            return "version: " + ":".join(["59"] * r.choice((10, 1000, 5000)))
        case 4:
            return "a: &a\n  b: *a\nworkload: *a\n"
    return "a: " + "[" * (n * 100)
