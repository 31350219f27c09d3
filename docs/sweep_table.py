"""The table of a recorded sweep, as in docs/parallelism.md: `python docs/sweep_table.py CAPTURES`.

Ingests the captures into a warehouse put aside, and sets what is found in them beside what their manifests say.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import tracewarehouse as tw
from tracewarehouse.definitions.pages import table
from tracewarehouse.ingest.capture.manifest import Manifest, load_manifest
from tracewarehouse.ingest.capture.promises import NOTE
from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.pipeline import ingest_capture

COLLECTIVES = """
SELECT name, stage, phase, kind, axis, max(n) AS most
FROM (
  SELECT r.name, COALESCE(d.pp_index, 0) AS stage, c.phase, c.kind, c.axis, c.device_id, c.step, count(*) AS n
  FROM collectives AS c
  JOIN devices AS d USING (run_id, device_id)
  JOIN runs AS r USING (run_id)
  GROUP BY ALL
)
GROUP BY ALL ORDER BY ALL"""
ATTRIBUTION = """
SELECT
  r.name, r.mesh,
  100.0 * count(o.phase) FILTER (WHERE o.step IS NOT NULL) / count(*) AS ops_percent,
  100.0 * sum(CASE WHEN COALESCE(CAST(l.layer AS VARCHAR), l.part) IS NULL THEN 0 ELSE o.self_ps END)
    / sum(o.self_ps) AS time_percent
FROM models.leaf_ops AS o
JOIN models.op_layers AS l USING (run_id, event_id)
JOIN runs AS r USING (run_id)
GROUP BY ALL ORDER BY ALL"""
PHASES = ("prefill", "decode")
TOKENS = {True: "equal", False: "differ", None: "not compared"}
Counts = dict[tuple[str, str, str], int]
"""Collectives of a step on the device with most of them, by phase, kind and axis."""
SHORT = {
    "all-reduce": "AR",
    "all-gather": "AG",
    "reduce-scatter": "RS",
    "all-to-all": "A2A",
    "collective-permute": "CP",
}


def main(folder: Path) -> None:
    """Print the table."""
    manifests = {m.name: m for m in map(load_manifest, sorted(folder.glob("*/manifest.json")))}
    with tempfile.TemporaryDirectory() as aside:
        results = [ingest_capture(capture, Path(aside)) for capture in find_captures(folder)]
        warehouse = tw.open(aside)
        found: dict[str, dict[int, Counts]] = defaultdict(lambda: defaultdict(dict))
        for name, stage, phase, kind, axis, most in warehouse.query(COLLECTIVES).rows():
            found[name][stage][phase, kind, axis] = most
        attribution = warehouse.query(ATTRIBUTION).rows()
    head = ["run", "axes", "tokens", *(f"promised per {p}" for p in PHASES), "kept", "beyond", "in a step"]
    head += ["in a layer or part", "profiling, wall", "profiling, CPU"]
    broken = {r.name for r in results if any(note.startswith(NOTE) for note in r.notes)}
    rows = []
    for name, mesh, ops, time in attribution:
        m = manifests[name]
        promised = {stage: _promised(m, stage) for stage in range(m.mesh.axes.get("pp", 1) if m.mesh else 1)}
        rows.append(
            [
                f"`{name}`",
                mesh,
                _tokens(m.checks),
                *(
                    _by_stage({s: _said(_of_phase(counts, phase)) for s, counts in promised.items()})
                    for phase in PHASES
                ),
                "no" if name in broken else "yes",
                _beyond(found[name], promised),
                f"{ops:.1f} %",
                f"{time:.1f} %",
                _overhead(m, "profiling_overhead"),
                _overhead(m, "profiling_overhead_cpu"),
            ]
        )
    print(table(head, rows), end="")


def _promised(manifest: Manifest, stage: int) -> Counts:
    promises = [p for p in manifest.promised_collectives or () if p.stage in (None, stage)]
    return {(p.phase, p.kind, p.axis): p.count for p in promises}


def _tokens(checks: dict[str, Any]) -> str:
    share = checks.get("comparable_share", 1.0)
    return TOKENS[checks["tokens_equal"]] + (f", {share:.0%} compared" if 0 < share < 1 else "")


def _of_phase(counts: Counts, phase: str) -> Counts:
    return {what: n for what, n in counts.items() if what[0] == phase}


def _by_stage(said: dict[int, str]) -> str:
    if len(set(said.values())) == 1:
        return said[0]
    return "; ".join(f"stage {stage}: {text}" for stage, text in said.items())


def _said(counts: Counts) -> str:
    return ", ".join(f"{n} {SHORT[kind]} {axis}" for (_, kind, axis), n in counts.items()) or "none"


def _beyond(found: dict[int, Counts], promised: dict[int, Counts]) -> str:
    more: Counts = {}
    for stage, counts in found.items():
        for what, most in counts.items():
            if (n := most - promised[stage].get(what, 0)) > 0:
                more[what] = max(n, more.get(what, 0))
    by_phase = {phase: _said(_of_phase(more, phase)) for phase in PHASES}
    if len(set(by_phase.values())) == 1:
        return by_phase["decode"]
    return "; ".join(f"{phase} {said}" for phase, said in by_phase.items())


def _overhead(manifest: Manifest, check: str) -> str:
    ratio = manifest.checks.get(check)
    return f"{100 * (ratio - 1):+.0f} %" if ratio is not None else ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
