"""Writes docs/prediction.md: published and recorded times beside those that tracewarehouse predicts.

python docs/prediction.py                    write the page
python docs/prediction.py --programs DIR     folder of the compiled programs that are not in the repository

The measured numbers are those of measured_collectives.csv and measured_steps.csv in tracewarehouse/predict. A step
whose compiled program is not at hand has a dash for what is predicted.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from tracewarehouse.definitions.pages import table
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.replica_groups import parse_groups
from tracewarehouse.predict.calibrations import rates
from tracewarehouse.predict.links import SliceCollective, TimeRange, collective_time
from tracewarehouse.predict.machine import Machine
from tracewarehouse.predict.timeline import predict_program, program_end
from tracewarehouse.predict.whole_model import whole_model

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "prediction.md"
PROGRAMS = DOCS.parent.parent / "shared" / "prototypes" / "predict"
KEPT = DOCS.parent / "tests" / "predict" / "kept"
"""Programs that are in the repository."""

Row = Mapping[str, str]

_HEAD = """<!-- Written by docs/prediction.py. -->

# Prediction

`tw plan` predicts the times of a program that libtpu compiled, on chips that need not be there. This page sets what it
says beside every number that was found published or recorded, errors included. {inside} of {count} measured numbers
with a prediction lie between the stated low and high, {outside} of {count_outside} of those outside the sample. For
{without} more the compiled program is not kept.

## How a time comes about

- The compiled program says the order of the ops on the core, the cycles of each fusion, the transfers between memories
  and the algorithm of each collective. `tracewarehouse/predict/` has a small function for each rule, with its source.
- What chips and links reach is in `tracewarehouse/predict/calibrations.csv`: a value, a range and a source for each.
  A row with `n` of 0 is a public statement or a judgement; the others say how many measurements stand behind them.
- Low and high take every rate at one end of its range. They say how wrong the rules may be, not how much steps differ.

**In the sample** are measurements to which some rate was fitted, so they prove little. **Outside** are all others. The
factors of loop fusions on v6e were chosen on the prefills of CCL-Bench, so these are in it, by both clocks.

## Where it must not be used

- **As the latency of a server.** A served step takes {engine_low:g} to {engine_high:g} times the device step that is
  predicted, and up to {host_high:g} ms more. Kernels for ragged batches, padding and sampling are the
  *engine term*; the *host term* is what the host adds between two steps.
- **For queueing, continuous batching and percentiles of requests.** A prediction is one execution of one program.
- **For quantized models.** The rules were compared with products of bf16 alone.
- **To choose between two configurations whose ranges overlap**, unless all but one term of the two are the same.
- **For the decode of small batches over many chips, without a calibration.** Small all-reduces were never measured
  on v5e, v4, v5p, and on v6e only as part of a step. Their range is half to one and a half.
- **For small collectives on the SparseCores of TPU7x.** Published times are a multiple of what the links need. The
  time of a hop there is fitted to five all-gathers, and three published all-reduces take 1.1 to 1.5 times what follows.
- **For other versions of libtpu**: another compiler makes another program. The programs of this page are of 0.0.42.1.

## Your own measurements

The metric `prediction_error` sets the ops of a recorded run beside the equal ops of a predicted one, by kind of op.
`tw plan --calibrate RUN` makes rates of them: the median for the value, eight in ten ops for the range. A kind of op
counts if twenty ops and half of its time are compared. The rates are in the warehouse's `calibrations.csv`, in the
form of the table that ships, and win over it. Delete rows or the file to return. The programs of
[calibrate](collecting.md#half-an-hour-that-mends-predictions) need no prediction.

A kernel that a recorded run of the warehouse holds, with equal name and shapes on equal chips, takes its median in the
newest such run, which the prediction's notes name. A paged kernel's is that of the recorded contexts.
"""

_COLLECTIVES = """
## Collectives

Times in microseconds. SC: the SparseCores run it.

{rows}
"""

_STEPS = """
## Steps

Times in milliseconds, by the clock of the device or of the host. The range of a server's step includes the *engine
term* ({engine}), and that of a step by the host's clock the *host term* ({host}); the predicted value has neither.
*High by cause* says how far each takes the high end: the rules alone, the engine, and the host. A dash: the compiled
program is not kept.

{rows}
"""


class Step(NamedTuple):
    """A predicted step of a whole model, in ms."""

    low: float
    mid: float
    high: float


def measured(name: str) -> list[Row]:
    """Return the rows of a table of measured numbers."""
    text = (files("tracewarehouse") / "predict" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def collective(row: Row) -> TimeRange:
    """Return what is predicted for a measured collective."""
    return collective_time(
        Machine.named(row["topology"]),
        SliceCollective(
            row["kind"],
            int(row["message_bytes"]),
            parse_groups(row["groups"]),
            emitter=row["emitter"] or None,
            strategy=row["strategy"] or None,
            on_sparsecore=row["is_on_sparsecore"] == "1",
        ),
    )


def step(row: Row, programs: Path) -> Step | None:
    """Return what is predicted for the device step of a measured one; None without its program."""
    paths = [folder / f"{row['program']}.hlo.pb.gz" for folder in (programs, KEPT)]
    path = next((path for path in paths if row["program"] and path.exists()), None)
    if path is None:
        return None
    module = HloModule("step", gzip.decompress(path.read_bytes()), [])
    kernels = {name: round(float(us) * 1e6) for name, _, us in (row["kernels_us"].partition("="),) if name}
    context = float(row["context_tokens"]) if row["context_tokens"] else None
    ops = predict_program(module, Machine.named(row["topology"]), kernels=kernels, context_tokens=context)
    compiled = int(re.search(r"-l(\d+)-", path.name)[1])
    ops = whole_model(module, ops, int(row["layers"]) - compiled).ops
    core = [op for op in ops if op.queue == "core"]
    whole = program_end(ops)
    low, mid, high = (sum(values) for values in zip(*((o.low_ps, o.duration_ps, o.high_ps) for o in core), strict=True))
    return Step(whole * low / mid / 1e9, whole / 1e9, whole * high / mid / 1e9)


def served(predicted: Step, row: Row) -> Step:
    """Return the step with the engine and host terms, where the measured one has them."""
    table_of = rates(row["topology"].partition(":")[0])
    engine, host = table_of["engine", "factor"], table_of["host", "ms"]
    low, mid, high = predicted
    if row["engine"]:
        low, high = low * engine.low, high * engine.high
    if row["clock"] == "host":
        low, high = low + host.low, high + host.high
    return Step(low, mid, high)


def high_by_cause(predicted: Step, row: Row) -> str:
    """Return the high end by the rules, and how far the terms of a server and of the host that a step has take it."""
    terms = {"rules": row | {"engine": "", "clock": "device"}}
    terms |= {"engine": row | {"clock": "device"}} if row["engine"] else {}
    terms |= {"host": row} if row["clock"] == "host" else {}
    return ", ".join(f"{name} {_number(served(predicted, term).high)}" for name, term in terms.items())


def page(programs: Path) -> str:
    """Return the page."""
    verdicts: list[tuple[str, bool]] = []
    collectives = []
    for row in measured("measured_collectives"):
        time = collective(row)
        us = float(row["measured_us"])
        is_inside = time.low_ps <= us * 1e6 <= time.high_ps
        verdicts.append((row["sample"], is_inside))
        where = row["topology"] + (", SC" if row["is_on_sparsecore"] == "1" else "")
        members = len(parse_groups(row["groups"])[0])
        what = f"{row['kind']} of {members}"
        low, mid, high = (t / 1e6 for t in time)
        shown = (_size(int(row["message_bytes"])), where, what, _number(us), _number(mid), _range(low, high))
        collectives.append((*shown, *_verdict(mid / us, is_inside), row["sample"], row["source"]))
    steps = []
    for row in measured("measured_steps"):
        ms = float(row["measured_ms"])
        where = f"{row['model']}, {row['topology']} {row['mesh']}"
        what = f"{row['phase']}, {row['work']}"
        clock = row["clock"] + (f", {row['engine']}" if row["engine"] else "")
        predicted = step(row, programs)
        if predicted is None:
            steps.append((where, what, clock, _number(ms), "-", "-", "-", "-", "-", row["sample"], row["source"]))
            continue
        low, mid, high = served(predicted, row)
        is_inside = low <= ms <= high
        verdicts.append((row["sample"], is_inside))
        shown = (where, what, clock, _number(ms), _number(mid), _range(low, high), high_by_cause(predicted, row))
        steps.append((*shown, *_verdict(mid / ms, is_inside), row["sample"], row["source"]))
    any_chip = rates("v6e")
    engine, host = any_chip["engine", "factor"], any_chip["host", "ms"]
    outside = [is_inside for sample, is_inside in verdicts if sample == "out"]
    without = sum(row[4] == "-" for row in steps)
    counts = {"without": without, "inside": sum(v for _, v in verdicts), "count": len(verdicts)}
    counts |= {"outside": sum(outside), "count_outside": len(outside)}
    head = ("measured", "predicted", "low to high", "predicted / measured", "inside", "sample", "source")
    return (
        _HEAD.format(**counts, engine_low=engine.low, engine_high=engine.high, host_high=host.high)
        + _COLLECTIVES.format(rows=table(("message", "slice", "collective", *head), collectives))
        + _STEPS.format(
            engine=f"x {engine.low:g} to {engine.high:g}",
            host=f"+ {host.low:g} to {host.high:g} ms",
            rows=table(("model and slice", "step", "clock", *head[:3], "high by cause", *head[3:]), steps),
        )
    )


def _verdict(ratio: float, is_inside: bool) -> tuple[str, str]:
    return f"{ratio:.2f}", "yes" if is_inside else "**no**"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _range(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"


def _size(size: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=Path, default=PROGRAMS)
    given = parser.parse_args(arguments)
    PAGE.write_text(page(given.programs), encoding="utf-8")


if __name__ == "__main__":
    main()
