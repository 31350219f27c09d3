"""Writes docs/agreement.md: the main numbers of each real capture beside a recomputation, XProf and CCL-Bench.

python docs/agreement.py                     write the page, with what XProf said last time
python docs/agreement.py --xprof PYTHON      ask XProf anew, of an interpreter that has it
python docs/agreement.py --traces DIR        folder of the captures that are not in the repository
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT / "tests"))  # the second computation is the tests' own

from numbers_from_bytes import numbers_from_bytes  # noqa: E402
from plain_main_numbers import main_numbers, other_numbers  # noqa: E402
from plain_metrics import Run  # noqa: E402
from work_from_bytes import work_from_bytes  # noqa: E402

from tracewarehouse.dashboards.words import quantity  # noqa: E402
from tracewarehouse.definitions.pages import table  # noqa: E402
from tracewarehouse.ingest.capture.sources import Capture, find_captures  # noqa: E402
from tracewarehouse.ingest.lake.schema import TABLES  # noqa: E402
from tracewarehouse.queries.run_summary import Number  # noqa: E402
from tracewarehouse.warehouse import Warehouse, open_warehouse  # noqa: E402

PAGE, XPROF = DOCS / "agreement.md", DOCS / "agreement_xprof.json"
DATA, TRACES = ROOT / "data" / "captures", ROOT.parent / "shared" / "traces"
_OUTSIDE = (
    "gpu-mi300-jax-gemm.xplane.pb",
    "tpu-2chip-vllm-tp2-prefill.xplane.pb",
    "tpu-v6e-4chip-host-offload.xplane.pb",
    "cpu",
    "tpu-2chip-vllm-tp2-prefill.trace.json.gz",
)
"""The captures outside the repository that the page shows."""
_OF_RANKS = (
    "tpu-2chip-vllm-tp2-quantized.xplane.pb",
    "gpu/kineto-v100-dlrm-8rank",
    "gpu/nsys-2gpu-fsdp.sqlite.gz",
    *(f"situations/jax-{name}.xplane.pb.gz" for name in ("perm", "scan-ta", "scan-train", "tray", "unroll-nested")),
    "situations/jax-unroll-one.xplane.pb.gz",
)
"""Further captures, of which the page shows the pairs of ranks alone."""
_READ = ("runs", "devices", "instructions", "ops", "collectives", "traffic", "phases")
_SIZES = "SELECT device_count AS devices, batch_size, input_length FROM main.runs WHERE run_id = $run_id"
_UNIT_OF_BYTES = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_NEAR = 0.005
"""Numbers of other tools that differ by less are the same: XProf prints them with few digits."""

_HEAD = """<!-- Written by docs/agreement.py. -->

# Agreement

One table for each real capture: its main numbers, as `tw show` prints them, what else computes them, and the numbers of
other tools. Look up the capture that is like yours; the page is not made to be read in a row.

- **ours** is recomputed each time from the *rows* of the run in plain Python, without SQL (`tests/plain_metrics.py`),
  and where the table says so from the *bytes* of the xplane file, with protobuf's own parser and without ingest
  (`tests/numbers_from_bytes.py`, `tests/work_from_bytes.py`). The script stops where they differ by more than one part
  in a thousand million. `tw fsck --against` proves that the rows hold every event and stat of an xplane file.
- **Pairs of ranks** are the ranks of each execution of a synchronous collective, each beside the first that leaves. All
  must overlap in time, or the groups name the wrong devices; `tw audit` asks this of every run.
- **XProf** {version}: its overview, hlo_stats, op_profile and memory_profile. It knows no phases. What it sums over
  a capture is divided by our number of steps and devices. It reads no Chrome trace.
- **CCL-Bench**: its definitions as our `ccl_*` views have them. Most of them read TPU captures alone.

A dash means that a tool has no number. A letter behind a number of another tool says why it differs from ours:

{reasons}
"""

_HTA = """
## Kineto traces, beside HTA and TraceLens

Holistic Trace Analysis 0.5.0 (PyPI's HolisticTraceAnalysis) on two traces of A100 GPUs, over all steps but the last,
which it leaves out; and AMD's TraceLens (AMD-AGI/TraceLens, `GPUEventAnalyser`) on the same traces, whole.
`tests/ingest/readers/kineto` holds ours to these numbers and to an independent decoder.

| trace | number | ours | HTA |
|---|---|---|---|
| kineto-a100-overlap-rank3of8 | time with any kernel, copy or set | 321,285 us | 321,285 us |
| kineto-a100-overlap-rank3of8 | share of communication that compute hides | 47.03 % | 47.03 % |
| kineto-a100-ddp-ncclmeta | time with any kernel, copy or set | 99,168 us | 96,805 us |
| kineto-a100-ddp-ncclmeta | share of communication that compute hides | 14.76 % | 14.31 % |

The second trace has nanoseconds. HTA cuts them off, at the start of an event upwards and at its end downwards, so that
each of its 2,516 kernels, copies and sets loses about a microsecond. The times of the first are whole microseconds.

| trace | number | ours | TraceLens |
|---|---|---|---|
| kineto-a100-overlap-rank3of8 | time with any kernel, copy or set | 388,587 us | 388,587 us |
| kineto-a100-overlap-rank3of8 | time with communication | 163,535 us | 163,535 us |
| kineto-a100-overlap-rank3of8 | exposed communication | 87,921 us | 87,267 us |
| kineto-a100-ddp-ncclmeta | time with any kernel, copy or set | 157,500 us | 157,500 us |
| kineto-a100-ddp-ncclmeta | time with communication | 46,876 us | 46,876 us |
| kineto-a100-ddp-ncclmeta | exposed communication | 39,559 us | 39,529 us |

TraceLens takes sets of memory for compute, and so communication beside a set for hidden. With sets as compute, ours is
exposed for 87,267 us and 39,529 us.
"""

REASONS = {
    ("layer_time", "The bytes"): (
        "tell a layer from one attention kernel to the next, with gaps; ours adds up the ops of each layer."
    ),
    (
        "device_idle",
        "XProf",
    ): "counts from a device's first op to its last, also what lies before the steps; ours is the time of the steps.",
    ("step_time", "XProf"): (
        "averages the durations of the host's step marks, with prefill in some captures and without it in others, as "
        "its maximum shows, and prints one digit; ours is the mean over devices from start to next start, by phase."
    ),
    ("hbm_bandwidth", "XProf"): (
        "adds what asynchronous copies write to HBM, which is our copied_gbps; on GPUs it estimates bytes from the HLO "
        "by a cost model of its own, and we take what the profiler states, which is nothing."
    ),
    ("top_kernels", "XProf"): (
        "leaves out the copies that the GPU's runtime makes, which are of no program; the kernels' times are equal."
    ),
    ("step_time", "CCL-Bench"): (
        "divides the whole span of the trace, prefill, gaps and what is before the first step included, by the card's "
        "iterations; ours is the mean over devices from start to next start, by phase."
    ),
    ("mfu", "CCL-Bench"): (
        "divides the profiler's model_flops by the time in which ops run and by 918 TFLOP/s, whatever the chip; ours "
        "counts what the model needs, and so needs its size."
    ),
    ("traffic_volume", "CCL-Bench"): (
        "sums bytes_accessed, which is memory traffic: an all-reduce reads and writes its message, so that it counts "
        "twice."
    ),
}
"""Why a number from elsewhere differs from ours, by metric and tool; its letter is that of its place here."""

OTHERS = (
    ("prefill_throughput", "Prefill throughput", "tokens/s", "prompt_tokens_per_s", "FROM metrics.prefill_throughput"),
    (
        "top_kernels",
        "Largest kernel",
        "%",
        "phase, kernel, 100 * self_ms / sum(self_ms) OVER (PARTITION BY run_id, phase)",
        "FROM (SELECT run_id, coalesce(phase, '') AS phase, kernel, sum(self_ms) AS self_ms FROM metrics.top_kernels "
        "GROUP BY ALL UNION ALL SELECT run_id, 'whole capture', kernel, sum(self_ms) FROM metrics.top_kernels "
        "GROUP BY ALL) QUALIFY row_number() OVER (PARTITION BY run_id, phase ORDER BY self_ms DESC) = 1",
    ),
    (
        "traffic_volume",
        "Traffic per step",
        "bytes",
        "coalesce(phase, '') AS phase, kind, sum(message_bytes_per_step)",
        "FROM metrics.traffic_volume GROUP BY run_id, phase, kind",
    ),
    (
        "collective_attribution",
        "Time of collectives",
        "%",
        "coalesce(phase, '') AS phase, kind, axis, part, 100 * share",
        "FROM (UNPIVOT metrics.collective_attribution ON transfer_share AS transfer, arrival_share AS arrival, "
        "overlap_share AS overlap INTO NAME part VALUE share) WHERE share > 0",
    ),
    (
        "layer_time",
        "Time of a layer",
        "us",
        "coalesce(phase, '') AS phase, sum(self_us) / count(DISTINCT layer)",
        "FROM metrics.layer_time WHERE layer IS NOT NULL GROUP BY run_id, phase",
    ),
    ("memory_in_use", "Memory in use", "bytes", "max(peak_bytes)", "FROM metrics.memory_in_use GROUP BY run_id"),
    (
        "rank_overlap",
        "Pairs of ranks",
        "count",
        "part, pairs",
        "FROM (UNPIVOT (SELECT run_id, sum(pairs) AS compared, sum(overlapping) AS 'overlapping in time' "
        "FROM models.rank_overlap GROUP BY run_id) ON compared, 'overlapping in time' INTO NAME part VALUE pairs)",
    ),
)
"""Other numbers: metric, name, unit, the columns of parts and value, and where they are."""
_WITHOUT_REASON = {
    "layer_time": "its ops name parts of the model, but no layers",
    "rank_overlap": "no two of its devices share a synchronous collective",
}
"""Why a capture lacks one of these, if no metric says so."""
_OF_XPROF = {("top_kernels", "whole capture"): "largest_kernel_percent", ("memory_in_use", ""): "memory_bytes"}


def captures(traces: Path) -> list[Capture]:
    """The captures of the repository, and those of the folder where it is there."""
    found = find_captures(DATA)
    if traces.is_dir():
        found += [capture for name in _OUTSIDE for capture in find_captures(traces / name)]
    return found


def title(capture: Capture) -> str:
    """The heading of a capture's section."""
    return f"{capture.name}, Chrome trace" if _is_chrome(capture) else capture.name


def _is_chrome(capture: Capture) -> bool:
    return ".trace.json" in capture.files[0].name


def section(warehouse: Warehouse, capture: Capture, xprof: Mapping[str, float]) -> str:
    """The part of the page about one capture, which is ingested for it.

    Args:
        warehouse: receives the run.
        capture: the capture.
        xprof: what XProf says of it, as docs/xprof_numbers.py prints it.

    Raises:
        ValueError: a recomputed number differs, or another tool's does without a reason in `REASONS`.
    """
    run_id = warehouse.ingest_capture(capture).run_id
    proof = None if _is_chrome(capture) else warehouse.against(capture)  # which decodes no export a second time
    if proof and proof.differences:
        raise ValueError(f"{capture.name}: its run differs from its bytes: {proof.differences[0]}")
    summary = warehouse.summary(run_id)
    facts, run = summary.facts, Run(_tables(warehouse, run_id))
    plain = {**main_numbers(run), **other_numbers(run)}
    phases = sorted({n.part for n in summary.numbers if n.metric == "device_idle"})
    from_bytes: dict[tuple[str, ...], float] = {}
    if _is_one_xplane(capture):
        [sizes] = warehouse.query(_SIZES, run_id=run_id).dicts()
        from_bytes |= work_from_bytes(capture.files[0], phases[-1], sizes)
        from_bytes |= numbers_from_bytes(capture.files[0], phases[-1])
    theirs = {"XProf": _of_xprof(xprof, facts, summary.numbers), "CCL-Bench": _of_ccl_bench(warehouse, run_id, facts)}
    reasons = {m.metric: m.reason.partition(";")[0].rstrip(".") for m in summary.missing}
    rows: list[tuple[str, ...]] = []
    absent: dict[str, list[str]] = {}
    for n in summary.numbers:
        scale = _UNIT_OF_BYTES.get(n.unit, 1)
        ours, key = None if n.value is None else n.value * scale, (n.metric, n.part)
        unit = n.unit or {"mfu": "%", "hbm_bandwidth": "GB/s"}.get(n.metric, "")
        row = _row(capture.name, n.label, ours, scale, unit, key, plain, from_bytes, theirs)
        if ours is None:
            absent.setdefault(reasons[n.metric], []).append(n.name)
        if ours is not None or set(row[3:]) != {"-"}:
            rows.append(row)
    for metric, name, unit, columns, source in OTHERS:
        sql = f"WITH found AS (SELECT {columns} AS value, run_id {source}) "
        sql += "SELECT * EXCLUDE run_id FROM found WHERE run_id = $run_id ORDER BY ALL"
        found = warehouse.query(sql, run_id=run_id).rows()
        if not found:
            why = reasons.get(metric) or _WITHOUT_REASON[metric]
            absent.setdefault(why, []).append(name)
        for *part, ours in found:
            key = (metric, *(part or [""]))
            label = ", ".join([name, *filter(None, part)])
            said = {"XProf": {key: xprof[_OF_XPROF[key[:2]]]} if _OF_XPROF.get(key[:2]) in xprof else {}}
            rows.append(_row(capture.name, label, ours, 1, unit, key, {key: ours} | plain, from_bytes, said))
    kind = facts["device_kind"] or facts["backend"]
    [(events,)] = warehouse.query("SELECT event_count FROM main.runs WHERE run_id = $run_id", run_id=run_id).rows()
    size = f"{proof.events:,} events and {proof.stats:,} stats" if proof else f"{events:,} events"
    head = f"{facts['devices']} x {kind}, {size}."
    lacking = " ".join(f"No {', '.join(names)}: {reason}." for reason, names in absent.items())
    numbers = table(("number", "ours", "recomputed from", "XProf", "CCL-Bench"), rows)
    return f"\n## {title(capture)}\n\n{head}{' ' + lacking if lacking else ''}\n\n{numbers}"


def rank_section(warehouse: Warehouse, captures: Sequence[Capture]) -> str:
    """The pairs of ranks of further captures, which are ingested for it, and of all captures of the page."""
    sql = "SELECT sum(pairs), sum(overlapping) FROM models.rank_overlap WHERE run_id = $run_id"
    rows = []
    for capture in captures:
        [pairs] = warehouse.query(sql, run_id=warehouse.ingest_capture(capture).run_id).rows()
        rows.append((capture.name, *(f"{n or 0:,}" for n in pairs)))
    [pairs] = warehouse.query("SELECT sum(pairs), sum(overlapping) FROM models.rank_overlap").rows()
    rows.append(("all captures of this page", *(f"{n or 0:,}" for n in pairs)))
    found = table(("capture", "pairs of ranks, compared", "overlapping in time"), rows)
    return f"\n## Ranks of further captures\n\n{found}" if captures else ""


def _row(
    capture: str,
    label: str,
    ours: float | None,
    scale: float,
    unit: str,
    key: tuple[str, ...],
    plain: Mapping[tuple[str, ...], float],
    from_bytes: Mapping[tuple[str, ...], float],
    theirs: Mapping[str, Mapping[tuple[str, ...], float]],
) -> tuple[str, ...]:
    """A row of the table: the number in a unit of `scale`, its recomputations, and those of other tools.

    Raises:
        ValueError: a recomputed number differs, or another tool's does without a reason.
    """
    if not _is_near(ours, plain.get(key), 1e-9):
        raise ValueError(f"{capture}: {label} is {ours}, recomputed {plain.get(key)}")
    sources = ["rows"] if ours is not None else []
    in_bytes = key if key in from_bytes else (*key[:3], *key[4:])  # the bytes do not name axes
    if in_bytes in from_bytes:
        read = from_bytes[in_bytes]
        if not _is_near(ours, read, _NEAR if key[0] == "layer_time" else 1e-9):
            raise ValueError(f"{capture}: {label} is {ours}, from the bytes {read}")
        sources.append("bytes" if _is_near(ours, read, 1e-9) else f"bytes ({quantity(read, unit)}) (a)")
    cells = []
    for tool in ("XProf", "CCL-Bench"):
        value = theirs.get(tool, {}).get(key)
        cell = "-" if value is None else quantity(value / scale, unit)
        if value is not None and not _is_near(ours, value, _NEAR):
            if (key[0], tool) not in REASONS:
                raise ValueError(f"{capture}: {label} is {ours}, of {tool} {value}, and no reason is known")
            cell += f" ({_letter(key[0], tool)})"
        cells.append(cell)
    shown = "-" if ours is None else quantity(ours / scale, unit)
    return label, shown, ", ".join(sources) or "-", *cells


def _letter(metric: str, tool: str) -> str:
    return "abcdefghijklmnop"[list(REASONS).index((metric, tool))]


def _tables(warehouse: Warehouse, run_id: str) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for name in _READ:
        columns = ", ".join(f'"{c.name}"' for c in TABLES[name].columns if c.name != "run_id")
        sql = f"SELECT {columns} FROM main.{name} WHERE run_id = $run_id"  # noqa: S608  names of the schema
        found[name] = list(warehouse.query(sql, run_id=run_id).dicts())
    return found


def _of_xprof(
    xprof: Mapping[str, float], facts: Mapping[str, Any], numbers: Sequence[Number]
) -> dict[tuple[str, str], float]:
    """XProf's numbers in our units; it knows no phases, so that only step time stands beside those of a phase."""
    phases = {n.part for n in numbers if n.metric == "device_idle"}
    found = {("step_time", "decode" if "decode" in phases else ""): xprof.get("step_time_ms")}
    if len(phases) == 1:
        [phase] = phases
        devices_and_steps = facts["devices"] * max(facts["steps"], 1)
        found[("device_idle", phase)] = xprof.get("idle_percent")
        [bandwidth] = [n for n in numbers if n.metric == "hbm_bandwidth"]
        found[(bandwidth.metric, bandwidth.part)] = xprof.get("hbm_gbps")
        counted = {n.part for n in numbers if n.metric == "collective_count" and n.value is not None}
        if "collectives" in xprof and len(counted) == 1:
            [part] = counted
            ran = facts["devices"] if part == "outside" else devices_and_steps
            found[("collective_count", part)] = xprof["collectives"] / ran
            found[("exposed_communication", part)] = xprof["collectives_ms"] / ran
    return {key: value for key, value in found.items() if value is not None}


def _of_ccl_bench(warehouse: Warehouse, run_id: str, facts: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Numbers of the ccl_* views in our units; they know no phases.

    A sum over the capture is divided by devices and steps, and left out where steps of several phases share it.
    """
    steps = (
        "SELECT DISTINCT coalesce(phase, '') AS phase FROM models.steps "
        "WHERE run_id = $run_id AND clock = 'device' ORDER BY phase"
    )
    phases = [name for (name,) in warehouse.query(steps, run_id=run_id).rows()] or [""]
    phase = phases[0]  # decode, if there is one
    asked = {
        ("ttft", "host"): "SELECT 1000 * ttft_s FROM metrics.ccl_ttft WHERE run_id = $run_id",
        ("tpot", "host"): "SELECT 1000 * tpot_s FROM metrics.ccl_tpot WHERE run_id = $run_id",
        ("step_time", phase): "SELECT 1000 * avg_step_time_s FROM metrics.ccl_avg_step_time WHERE run_id = $run_id",
        ("mfu", ""): "SELECT mfu_percent FROM metrics.ccl_mfu WHERE run_id = $run_id",
        (
            "traffic_volume",
            phase,
        ): "SELECT 1e9 * volume_gb FROM metrics.ccl_collective_vol WHERE run_id = $run_id AND kind = 'total'",
    }
    found = {key: warehouse.query(sql, run_id=run_id).rows() for key, sql in asked.items()}
    values = {key: rows[0][0] for key, rows in found.items() if rows and rows[0][0] is not None}
    volume = values.pop(("traffic_volume", phase), None)
    if volume and len(phases) == 1:  # 0 is what it says of what it cannot read
        values["traffic_volume", phase] = volume / (facts["devices"] * max(facts["steps"], 1))
    return values


def _is_near(one: float | None, other: float | None, relative: float) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= relative * max(abs(one), abs(other)) + 1e-12


def asked_xprof(python: Path, capture: Capture) -> dict[str, Any]:
    """What XProf says of a capture; nothing of a Chrome trace, nor of several hosts' files."""
    if not _is_one_xplane(capture):
        return {}
    command = [str(python), str(DOCS / "xprof_numbers.py"), str(capture.files[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)  # noqa: S603
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _is_one_xplane(capture: Capture) -> bool:
    return len(capture.files) == 1 and capture.files[0].name.endswith(".xplane.pb")


def page_head(xprof: Mapping[str, Any]) -> str:
    """What stands before the captures."""
    reasons = "\n".join(f"- ({_letter(*key)}) {key[1]} {reason}" for key, reason in REASONS.items())
    return _HEAD.format(version=xprof.get("version", ""), reasons=reasons)


def main() -> int:
    """Write the page; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xprof", type=Path, metavar="PYTHON", help="an interpreter that has XProf")
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of captures outside the repository")
    options = parser.parse_args()
    found = captures(options.traces)
    said = json.loads(XPROF.read_text(encoding="utf-8")) if XPROF.is_file() else {"captures": {}}
    if options.xprof:
        answers = {title(c): asked_xprof(options.xprof, c) for c in found}
        versions = sorted({a["version"] for a in answers.values() if a})
        said = {"version": ", ".join(versions), "captures": {t: a["numbers"] for t, a in answers.items() if a}}
        XPROF.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, open_warehouse(Path(folder) / "warehouse", create=True) as warehouse:
        sections = [section(warehouse, c, said["captures"].get(title(c), {})) for c in found]
        further = [
            c for name in _OF_RANKS if (options.traces / name).exists() for c in find_captures(options.traces / name)
        ]
        sections.append(rank_section(warehouse, further))
    PAGE.write_text(page_head(said) + "".join(sections) + _HTA, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
