"""The reader of manifests against json.loads."""

from __future__ import annotations

import json
import random
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from fuzz.chrome import damaged
from fuzz.judging import Target, UnknownError, scratch_file
from fuzz.seeds import capture_files

from tracewarehouse.ingest.capture.manifest import Manifest, load_manifest
from tracewarehouse.ingest.capture_names import AXES
from tracewarehouse.ingest.tables.run_row import manifest_facts

KINDS = (
    "none", "value", "value", "value", "mesh", "mesh", "missing", "truncate", "flip", "insert", "delete", "token",
    "splice", "deep",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, "", "text", 0, 1, -1, 1 << 31, 1 << 63, -(1 << 64), 10**30, 1.5, 2.0, 1e300, float("inf"), float("nan"),
    True, [], [1, "a"], {}, {"a": {"b": 1}}, "12", "<script>", "\u202e", "\x1b[2J", "a\nb\0", "../../etc", "\ud800",
)  # fmt: skip
SIZES = (1, 2, 2, 4, 3, 0, -1, 1 << 20, 1 << 40, 10**18, "2", 1.0, True, None)


class ManifestTarget(Target):
    """Manifests of the repository's captures with other values, and damaged as bytes."""

    name = "manifest"
    suffix = ".json"

    def __init__(self, traces: Path | None = None) -> None:
        self._path = scratch_file(self, "manifest.json")
        self._manifests = [json.loads(f.read_text()) for f in capture_files(traces, "manifest.json")]
        for tree in self._manifests:
            stage = {"first_layer": 0, "last_layer": 0, "first_slot": 0}
            tree.setdefault("stages", [dict(stage) for _ in range(tree["mesh"]["axes"].get("pp", 0))])

    def make(self, r: random.Random) -> tuple[str, bytes]:
        kind = r.choice(KINDS)
        tree = json.loads(json.dumps(r.choice(self._manifests)))
        if kind == "deep":
            n = r.choice((10, 300, 3000, 30_000))
            text = json.dumps(tree)[:-1] + ', "x": ' + r.choice(("[" * n + "]" * n, '{"a":' * n + "1" + "}" * n)) + "}"
            return kind, text.encode()
        if kind == "value":
            places = [tree, tree, tree["model"], *tree["phases"], *(tree["promised_collectives"] or ())]
            places += tree["stages"] or ()
            for parent in r.choices(places, k=r.choice((1, 1, 2, 4))):
                parent[r.choice([*parent, "extra"])] = r.choice(VALUES)
        elif kind == "mesh":
            axes = {a: r.choice(SIZES) for a in r.sample([*AXES, "x"], r.randrange(4))}
            tree["mesh"] = {"axes": axes}
            if r.random() < 0.5:
                n = r.randrange(9)
                tree["mesh"]["device_ids"] = r.sample(range(n), n) if r.random() < 0.7 else [r.choice(SIZES)] * n
        elif kind == "missing":
            tree.pop(r.choice(list(tree)))
        data = json.dumps(tree, indent=r.choice((None, 1)), ensure_ascii=r.random() < 0.5).encode(
            "utf-8", "surrogatepass"
        )
        return kind, damaged(r, data, kind)

    def read(self, data: bytes) -> Any:
        self._path.write_bytes(data)
        manifest = load_manifest(self._path)
        facts = manifest_facts(manifest)
        assert all(not isinstance(v, int) or abs(v) < 1 << 63 for v in facts.values()), "a fact beyond int64"
        assert all(abs(t) < 1 << 63 for p in manifest.phases for t in (p.start_ns, p.end_ns, p.step)), (
            "a time beyond int64"
        )
        assert str(manifest.mesh).encode(), "a mesh without a name"
        for text in facts.values():
            assert not isinstance(text, str) or text.encode() is not None
        return manifest, manifest.mesh.coordinates() if manifest.mesh else None

    def reference(self, data: bytes) -> Any:
        try:
            tree = json.loads(data.decode())
        except (ValueError, RecursionError) as error:
            raise UnknownError("no JSON") from error
        if not isinstance(tree, dict):
            raise UnknownError("no object")
        return tree

    def difference(self, got: tuple[Manifest, Any], want: dict[str, Any]) -> str:
        """Fields whose value already has the type of the field must be what JSON says; coordinates are counted out."""
        manifest, coordinates = got
        for holder, tree in ((manifest, want), (manifest.model, want.get("model") or {})):
            for key, value in tree.items():
                found = getattr(holder, key, None)
                if (
                    type(found) is type(value)
                    and not isinstance(value, (dict, list))
                    and found != value
                    and value == value
                ):
                    return f"{key}: expected {value!r:.200}, found {found!r:.200}"
        if manifest.mesh is None:
            return ""
        axes = manifest.mesh.axes
        total = prod(axes.values())
        if total > 4096:
            return ""
        ids = manifest.mesh.device_ids or range(total)
        places = [dict(zip(axes, at, strict=True)) for at in product(*(range(n) for n in axes.values()))]
        expected = dict(zip(ids, places, strict=True))
        return "" if coordinates == expected else f"coordinates: expected {expected}, found {coordinates}"

    def may_refuse(self, data: bytes, want: Any, refusal: str) -> str:
        return "a manifest's rules" if "not a valid manifest" in refusal or "cannot be read" in refusal else ""
