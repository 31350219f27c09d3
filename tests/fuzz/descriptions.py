"""What users and servers say of runs: batches, costs, experiments, definitions. Only how they are refused is judged.

Each is accepted, with numbers that fit 64 bits, or refused in one sentence, and never more than that sentence costs.
"""

from __future__ import annotations

import json
import random
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from fuzz.card import VALUES, _bomb, _damaged, _places
from fuzz.judging import Target, UnknownError, scratch_file
from fuzz.query import KINDS as STATEMENTS
from fuzz.query import statement

from tracewarehouse.collect.experiment import READY_MADE, load_experiment
from tracewarehouse.definitions.reading import SQL, _check_selects, _read_user_folder
from tracewarehouse.ingest.capture.batches import BatchFile, read_batches
from tracewarehouse.ingest.capture.costs import load_costs

KINDS = ("none", "value", "value", "key", "truncate", "flip", "insert", "delete", "splice", "token", "bomb", "deep")
_BATCH = {
    "batch_id": 3, "phase": "InferencePhase.DECODE_ONLY", "total_num_scheduled_tokens": 8, "num_prefill_tokens": 0,
    "num_decode_tokens": 8, "padded_total_num_scheduled_tokens": 16, "num_reqs": 8, "min_kv_len": 12,
}  # fmt: skip
_COST = {"flops": 1000, "bytes": 2000}
_INT64_MAX = (1 << 63) - 1


class BatchesTarget(Target):
    """The files that servers write beside captures."""

    name = "batches"
    suffix = ".json"

    def __init__(self, traces: Path | None = None) -> None:
        self._seeds: list[dict[str, Any]] = self.seeds()
        self._path = scratch_file(self, f"given{self.suffix}")

    def seeds(self) -> list[dict[str, Any]]:
        """Content that is accepted."""
        return [{str(i): _BATCH | {"batch_id": i} for i in range(3)}]

    def text(self, tree: dict[str, Any], r: random.Random) -> str:
        """The content as a file has it."""
        listed = [v for _, v in sorted(tree.items(), key=str)]
        return r.choice(("\n".join(json.dumps(v, default=str) for v in listed), json.dumps(listed, default=str)))

    def make(self, r: random.Random) -> tuple[str, bytes]:
        kind = r.choice(KINDS)
        if kind == "bomb":
            return kind, _bomb(r).encode()
        if kind == "deep":
            n = r.choice((300, 3000, 30_000))
            return kind, ('{"kernels": ' + r.choice(("[" * n + "]" * n, '{"a":' * n + "1" + "}" * n)) + "}").encode()
        tree = deepcopy(r.choice(self._seeds))
        for _ in range(r.choice((1, 1, 2, 5)) if kind in ("value", "key") else 0):
            parent, key = r.choice(list(_places(tree)))
            name = key if kind == "value" and key in parent else r.choice((key, "tp", "extra", "", 1, None, "a\nb"))
            parent[name] = deepcopy(r.choice(VALUES))
        text = self.text(tree, r)
        if kind in ("truncate", "flip", "insert", "delete", "splice", "token"):
            text = _damaged(r, text, kind)
        return kind, text.encode("utf-8", "surrogatepass") if r.random() < 0.99 else text.encode("utf-16")

    def read(self, data: bytes) -> Any:
        path = self._path.with_suffix(".jsonl") if len(data) % 2 else self._path
        path.write_bytes(data)
        for batch in read_batches([BatchFile(path, 0)]):
            assert all(not isinstance(v, int) or 0 <= v <= _INT64_MAX for v in vars(batch).values())
        return None

    def reference(self, data: bytes) -> Any:
        raise UnknownError("only how it is refused is judged")


def _lines(cost: dict[str, Any]) -> str:
    return "".join(f"{k} = {json.dumps(v, default=str)}\n" for k, v in cost.items())


class CostsTarget(BatchesTarget):
    """Files of costs of kernels."""

    name = "costs"

    def seeds(self) -> list[dict[str, Any]]:
        return [{f"RPA-{i}*": dict(_COST) for i in range(2)}, {"splash": {"flops": 5}, "*": dict(_COST)}]

    def text(self, tree: dict[str, Any], r: random.Random) -> str:
        if r.random() < 0.5:
            return json.dumps(tree, default=str, skipkeys=True)
        lines = [
            f"[{json.dumps(str(k))}]\n" + _lines(v) if isinstance(v, dict) else f"{k} = {v!r}\n"
            for k, v in tree.items()
        ]
        return "".join(lines)

    def read(self, data: bytes) -> Any:
        path = self._path if data[:1] == b"{" else self._path.with_suffix(".toml")
        path.write_bytes(data)
        for cost in load_costs(path).kernels.values():
            assert all(not isinstance(v, int) or abs(v) <= _INT64_MAX for v in vars(cost).values())
        return None


class ExperimentTarget(BatchesTarget):
    """The ready-made experiments with other values, and damaged as text."""

    name = "experiment"
    suffix = ".yaml"
    works = 100.0  # PyYAML, and a plan of all runs

    def seeds(self) -> list[dict[str, Any]]:
        return [yaml.safe_load(f.read_text()) for f in sorted(READY_MADE.glob("*.yaml")) if f.stat().st_size < 3000]

    def text(self, tree: dict[str, Any], r: random.Random) -> str:
        return str(yaml.safe_dump(tree, sort_keys=False))

    def read(self, data: bytes) -> Any:
        self._path.write_bytes(data)
        load_experiment(self._path)
        return None


class DefinitionsTarget(Target):
    """Definitions of the package with other headers and statements, and damaged as text, in a user's folder."""

    name = "definitions"
    suffix = ".sql"
    works = 100.0
    room = 32 << 30  # each folder opens a database, whose threads take address space

    def __init__(self, traces: Path | None = None) -> None:
        self._folder = scratch_file(self, "mine")
        self._folder.mkdir()
        self._seeds = [(f, f.read_text()) for f in sorted(SQL.rglob("*.sql"))]
        self._entries = yaml.safe_load((SQL / "preconditions.yaml").read_text())

    def make(self, r: random.Random) -> tuple[str, bytes]:
        kind = r.choice(("front", "front", "statement", "entry", *KINDS))
        path, text = r.choice(self._seeds)
        if kind == "bomb":
            text = f"/*---\n{_bomb(r)}\n---*/\nSELECT 1"
        elif kind == "deep":
            n = r.choice((300, 3000, 60_000))
            front = r.choice(("[" * n + "]" * n, '{"a":' * n + "1" + "}" * n, "- " * n, "? " * n))
            text = f"/*---\nnotes: {front}\n---*/\nSELECT 1"
        elif kind == "entry":
            name = r.choice(list(self._entries))
            tree: dict[Any, Any] = {name: deepcopy(self._entries[name])}
            parent, key = r.choice(list(_places(tree)))
            parent[r.choice((key, key, "extra", 1, None))] = deepcopy(r.choice((*VALUES, statement(r, "plain"))))
            path, text = SQL / "preconditions.yaml", yaml.safe_dump(tree, sort_keys=False)
        else:
            front, end, sql = text[len("/*---") :].partition("---*/")
            if kind in ("front", "value", "key"):
                header = yaml.safe_load(front)
                for _ in range(r.choice((1, 1, 3))):
                    parent, key = r.choice(list(_places(header)))
                    parent[r.choice((key, key, "extra", 1, None, "a\nb"))] = deepcopy(r.choice(VALUES))
                front = f"\n{yaml.safe_dump(header, sort_keys=False)}"
            elif kind == "statement":
                sql = statement(r, r.choice(STATEMENTS))
            text = f"/*---{front}{end}{sql}"
            if kind not in ("front", "value", "key", "statement", "none"):
                text = _damaged(r, text, kind)
        place = path.relative_to(SQL) if r.random() < 0.95 else r.choice(("x_v1.sql", f"x_v{'9' * 200}.sql", "X y.sql"))
        return kind, f"{place}\n{text}".encode("utf-8", "surrogatepass")

    def read(self, data: bytes) -> Any:
        """The first line is the file's place."""
        place, _, content = data.partition(b"\n")
        name = re.sub(r"[^\w./-]", "_", place.decode(errors="replace"))[:250]
        path = self._folder / (name if re.fullmatch(r"[\w-]+(/[\w-]+)*\.(sql|yaml)", name) else "preconditions.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        try:
            views = _read_user_folder(self._folder)
            _check_selects(views)
        finally:
            path.unlink()
        return None

    def reference(self, data: bytes) -> Any:
        raise UnknownError("only how it is refused is judged")
