"""Writes numbers and findings in words: values with units as people read them, and the sentences of a report."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from math import isfinite
from typing import TYPE_CHECKING, Any

from tracewarehouse.dashboards.kernel_names import short_name
from tracewarehouse.queries.run_summary import LIKELY

if TYPE_CHECKING:
    from tracewarehouse.queries.run_summary import RunSummary, Saving, StepShare

_WORTH = 0.005
"""Shares below this are not worth a word."""

_EVEN = 0.05
"""Devices are even if the busiest computes no longer than the mean by a larger share."""

_FAR = 0.2
"""A median step that differs from the mean by a larger share is said."""

ODD = 0.02
"""A layer that differs from the median by a larger share is odd."""

_FEW_LAYERS = 4
"""Fewer layers do not tell which of them is odd: of three, any may be of a kind of its own."""

# for each unit, the factor to the base unit, and the base unit
_BASES = {
    "s": (1.0, "s"),
    "ms": (1e-3, "s"),
    "us": (1e-6, "s"),
    "ns": (1e-9, "s"),
    "ps": (1e-12, "s"),
    "bytes": (1.0, "B"),
    "GB/s": (1e9, "B/s"),
    "FLOP/s": (1.0, "FLOP/s"),
    "FLOP": (1.0, "FLOP"),
}
_LEAST_PERCENT = 0.01
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"))


def quantity(value: float | None, unit: str = "", digits: int = 3) -> str:
    """A value, with the prefix that leaves the fewest zeros, and its unit.

    Args:
        value: the value; None is shown as nothing.
        unit: its unit as in the metrics, such as ms, bytes or ratio; a ratio is shown in percent.
        digits: significant digits; those before the point are never cut.
    """
    if value is None:
        return ""
    if not isfinite(value):
        return f"{value} {unit}".strip()
    if unit == "ratio":
        return f"{_digits(100 * value, digits)} %"
    if unit == "%" and 0 < value < _LEAST_PERCENT:
        return f"under {_LEAST_PERCENT} %"
    if unit not in _BASES:
        return f"{_digits(value, digits)} {unit if unit != 'count' else ''}".strip()
    factor, base = _BASES[unit]
    in_base = value * factor
    steps = _PREFIXES if base != "s" else _SMALL
    size, prefix = next(((s, p) for s, p in steps if abs(in_base) >= 0.9995 * s), steps[-1])
    if in_base == 0:
        size, prefix = 1.0, ""
    return f"{_digits(in_base / size, digits)} {prefix}{base}"


def _digits(value: float, digits: int = 3) -> str:
    """A number with some significant digits, or all digits before the point: 0.0994, 67.2, 1,352."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if abs(value) >= 1e-4 else f"{value:.2e}"


def largest(rows: Sequence[Mapping[str, Any]], value: str, unit: str, *labels: str, most: int = 3) -> str:
    """Name the rows with the largest values in words, by the columns `labels`, and say how many others there are."""
    known = [r for r in rows if r[value] is not None]
    ordered = sorted(known, key=lambda r: -r[value])
    named = [
        f"{' '.join(str(r[c]) for c in labels if r[c] not in (None, ''))} ({quantity(r[value], unit)})"
        for r in ordered[:most]
    ]
    rest = f"; {len(ordered) - most} more" if len(ordered) > most else ""
    return f"{'Largest first: ' if len(ordered) > 1 else ''}{', '.join(named)}{rest}."


_PARTS = {"matrix": "matrix products", "idle": "idle time"}
"""Parts of a step that sentences call otherwise."""
_EVIDENCE = {
    "idle": "idle",
    "exposed communication": "exposed-communication",
    "device_idle": "idle",
    "copy_overhead": "top-ops",
    "communication_fraction": "exposed-communication",
    "sync_wait": "collective-time",
}
"""For parts of a step and metrics of savings, the chart that shows where the time goes."""

_INFERRED = {
    "inferred_axes": "mesh",
    "inferred_order": "which devices a group names",
    "inferred_layers": "layers",
    "inferred_executions": "executions",
    "inferred_steps": "steps or their phases",
}
"""For the flags of what was inferred, its name."""


def findings(summary: RunSummary) -> list[tuple[str, str]]:
    """Say what takes a step's time, what would shorten it most, and what faster links would save.

    Returns at most three sentences, each with the name of the chart that is its evidence. A sentence goes over all
    phases, the one with most time first.
    """
    whole: dict[str, float] = defaultdict(float)
    for share in summary.steps:
        whole[share.phase] += share.mean_ms
    found = [(takes(summary.steps), _EVIDENCE.get(summary.steps[0].part, "top-ops"))] if summary.steps else []
    for is_of_links in (False, True) if _has_links(summary) else (False,):
        best: dict[str, Saving] = {}
        for saving in summary.savings:  # those of a phase begin with the most helpful
            if (
                saving.saved >= _WORTH
                and (saving.metric == "faster_links") is is_of_links
                and (saving.metric != "device_idle" or _has_links(summary))  # virtual devices take turns
            ):
                best.setdefault(saving.phase, saving)
        ordered = [best[phase] for phase in dict.fromkeys((*whole, *best)) if phase in best]
        if ordered:
            clauses = []
            for change, savings in groupby(ordered, key=lambda s: s.change):
                shares = ", ".join(_shorter(saving, whole.get(saving.phase)) for saving in savings)
                clauses.append(f"{change} would shorten {shares}")
            found.append((_sentence(clauses), _EVIDENCE.get(ordered[0].metric, "what-if")))
    return found


def takes(steps: Sequence[StepShare]) -> str:
    """Say what takes most of a step of each phase, and what comes next."""
    clauses = []
    for phase, of_phase in groupby(steps, key=lambda s: s.phase):
        first, *rest = of_phase
        subject = f"{_PARTS.get(first.part, first.part)} {'take' if first.part == 'matrix' else 'takes'}"
        whole = quantity(first.mean_ms + sum(s.mean_ms for s in rest), "ms", 4)
        time = f"{quantity(first.mean_ms, 'ms')} of {whole}"
        if first.copied_gbps:
            time += f"; copies move {quantity(first.copied_gbps, 'GB/s')} on a device"
        said = f"{subject} {quantity(first.share, 'ratio')} of {_a_step(phase)} ({time})"
        then = [f"{s.part} {quantity(s.share, 'ratio')}" for s in rest[:1] if (s.share or 0) >= _WORTH]
        clauses.append(", then ".join([said, *then]))
    return _sentence(clauses)


def median_apart(shares: Sequence[StepShare]) -> str:
    """What to add to the mean step of a phase if the median step is far from it, as where few steps take most time."""
    mean, median = sum(s.mean_ms for s in shares), shares[0].median_ms
    is_far = median is not None and abs(median - mean) > _FAR * mean
    return f"; the median step takes {quantity(median, 'ms', 4)}" if is_far else ""


def answers(summary: RunSummary) -> list[tuple[str, str]]:
    """Answer what everyone asks of a run: a label and a text each; what is not known says why.

    They say how much communication is exposed, whether devices and layers are alike, what faster links would save, and
    what is inferred or missing.
    """
    if not summary.steps:
        return [("Missing", _missing(summary))]
    return [
        ("Exposed communication", _exposed(summary)),
        ("Links twice as fast", _faster_links(summary)),
        ("Balance of devices", _balance(summary)),
        ("Odd layer", _odd_layer(summary)),
        ("Inferred", _inferred(summary)),
        ("Missing", _missing(summary)),
    ]


def _exposed(summary: RunSummary) -> str:
    shares = [s for s in summary.steps if s.part == "exposed communication"]
    if shares:
        return "; ".join(
            f"{quantity(s.mean_ms, 'ms')}, {quantity(s.share, 'ratio')} of {_a_step(s.phase)}" for s in shares
        )
    outside = [n for n in summary.numbers if n.metric == "exposed_communication" and n.part == "outside" and n.value]
    if outside:
        return f"none in a step; {quantity(outside[0].value, outside[0].unit)} outside of the steps"
    return _why(summary, "exposed_communication") or "none"


def _has_links(summary: RunSummary) -> bool:
    """Virtual devices take turns on a host, so their collectives tell nothing of links."""
    return bool(summary.facts["backend"] != "cpu")


def _faster_links(summary: RunSummary) -> str:
    if not _has_links(summary):
        return "the devices are virtual, they have no links"
    savings = [s for s in summary.savings if s.metric == "faster_links"]
    said = []
    for saving in savings:
        which = saving.change.removesuffix("links twice as fast").strip()
        shorter = f"{_a_step(saving.phase)} {_bound(saving)} {quantity(saving.saved, 'ratio')} shorter"
        said.append(f"{shorter} by faster {which}" if which and len(savings) > 1 else shorter)
    return "; ".join(said) or _why(summary, "faster_links", "exposed_communication") or "nothing"


def _balance(summary: RunSummary) -> str:
    if reason := _why(summary, "load_imbalance"):
        return reason
    said = []
    for e in summary.evenness:
        if e.devices > 1 and e.compute_imbalance is not None:
            more = e.compute_imbalance - 1
            by = quantity(more, "ratio", 2)
            how = "even" if more <= _EVEN else "uneven"
            said.append(
                f"{how}{_in(e.phase)} over all steps, device {e.busiest_device} computes {by} longer than the mean"
            )
    return "; ".join(said) or "not known"


def _odd_layer(summary: RunSummary) -> str:
    clauses = []
    for e in summary.evenness:
        if e.layers is None or e.odd_difference is None:
            continue
        by = quantity(abs(e.odd_difference), "ratio", 2)
        than = "longer" if e.odd_difference > 0 else "shorter"
        if e.layers < _FEW_LAYERS:
            clauses.append(f"too few to tell, {_digits(e.layers)} layer{'s' if e.layers > 1 else ''}{_in(e.phase)}")
        elif abs(e.odd_difference) <= ODD:
            clauses.append(f"none, all {e.layers} within {by} of the median{_in(e.phase)}")
        else:
            clauses.append(f"layer {e.odd_layer}, {by} {than} than the median of {e.layers}{_in(e.phase)}")
    judged = [e for e in summary.evenness if e.odd_difference is not None and (e.layers or 0) >= _FEW_LAYERS]
    if judged:
        clauses.append(f"over {quantity(ODD, 'ratio')} counts as odd")
    return "; ".join(clauses) or _why(summary, "layer_time") or "not known"


def _inferred(summary: RunSummary) -> str:
    is_guess = summary.facts["mesh_source"] == "inferred" and summary.facts["mesh_confidence"] < LIKELY
    flags = [f.flag for f in summary.flags if not (is_guess and f.flag == "inferred_axes")]
    named = dict.fromkeys(_INFERRED.get(flag, "") for flag in flags)
    return ", ".join(name for name in named if name) or "nothing: marks, names or the collector's manifest state it"


def _missing(summary: RunSummary) -> str:
    """Count the missing metrics, and say what would give most of them; that the run is measured is no lack.

    Of those that lack one thing, three have names: the main numbers first.
    """
    main = {n.metric for n in summary.numbers}
    whole = len(summary.missing)
    explained = 0
    unpredicted = {m.metric for m in summary.missing if m.unmet == "predicted"}
    said = []
    for reason, metrics in summary.reasons.items():
        if "; " in reason and metrics[0] not in unpredicted:  # it says what to do
            named = [plain(name) for name in sorted(metrics, key=lambda name: name not in main)[:3]]
            more = [f"{len(metrics) - 3} more"] if len(metrics) > 3 else []
            said.append(f"{len(metrics)} of {whole} ({', '.join([*named, *more])}): {reason.rstrip('.')}")
            explained += len(metrics) if len(said) < 3 else 0
    if 0 < explained < whole:
        said[2:] = [f"The end of the page has the reasons of the other {whole - explained}"]
    return ". ".join([f"{whole} metric{'' if whole == 1 else 's'}", *said[:3]]) if whole else "nothing"


def _why(summary: RunSummary, *metrics: str) -> str:
    return next((m.reason.rstrip(".") for name in metrics for m in summary.missing if m.metric == name), "")


def _bound(saving: Saving) -> str:
    return "at most" if saving.is_upper_bound else "about"


def _in(phase: str | None) -> str:
    return f" in {phase}" if phase else ""


def _shorter(saving: Saving, whole: float | None) -> str:
    time = "" if whole is None else f" ({quantity(saving.saved * whole, 'ms')})"
    share = f"{quantity(saving.saved, 'ratio')}{time}"
    return f"{_a_step(saving.phase)} by {_bound(saving)} {share}"


def _sentence(clauses: Sequence[str]) -> str:
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}."


def _a_step(phase: str) -> str:
    return f"a {phase} step" if phase else "a step"


NOT_PREDICTED = (
    "Predicted, not measured: queueing, continuous batching, a server's own kernels, quantization and the host "
    "are left out"
)
"""What no prediction knows."""

_PURPOSES = ("one user", "the first token", "most tokens per chip")
"""The purposes of macros.study_choices that every study is asked about."""


def choices(best: Sequence[Mapping[str, Any]], most: int = 6) -> list[str]:
    """Say which configuration is best for whom, from rows of macros.study_choices.

    Of one workload there is a sentence for each purpose, with the configuration that follows; of several a sentence for
    each of the first `most`.
    """
    by_workload = [(workload, list(rows)) for workload, rows in groupby(best, key=lambda b: b["workload"])]
    if len(by_workload) == 1:
        unsaid = _unsaid({b["purpose"] for b in best})
        return [*map(_choice, best), *([_sentence(unsaid)] if unsaid else [])]
    sentences = []
    for workload, rows in by_workload[:most]:
        named = (f"for {b['purpose']} {b['configuration']} ({_reached(b)}){_or_next(b)}" for b in rows)
        sentences.append(f"{workload}: {'; '.join([*named, *_unsaid({b['purpose'] for b in rows})])}.")
    if len(by_workload) > most:
        sentences.append(f"{len(by_workload) - most} more workloads have a choice; macros.study_choices has them all.")
    return sentences


def _unsaid(said: Collection[str]) -> list[str]:
    """Name the purposes for which there is nothing to choose from."""
    absent = [p for p in _PURPOSES if not any(purpose.startswith(p) for purpose in said)]
    return [f"for {' and for '.join(absent)} fewer than two configurations are known"] if absent else []


def _choice(best: Mapping[str, Any]) -> str:
    unit = best["unit"]
    after = _ranged(best, "next_value", "next_low", "next_high", unit if unit == "ms" else "")
    close = " Their ranges overlap, so either may be better." if best["is_within_range"] else ""
    return (
        f"For {best['purpose']}: {best['configuration']}, {_reached(best)}; the best alternative is "
        f"{best['next_configuration']}, {after}.{close}"
    )


def _or_next(best: Mapping[str, Any]) -> str:
    return f", or {best['next_configuration']}, whose range overlaps" if best["is_within_range"] else ""


def _reached(best: Mapping[str, Any]) -> str:
    return _ranged(best, "value", "low", "high", best["unit"])


def _ranged(row: Mapping[str, Any], value: str, low: str, high: str, unit: str) -> str:
    if row[low] is None:
        return quantity(row[value], unit)
    ends = (quantity(row[end], unit if unit == "ms" else "") for end in (low, high))
    return f"{quantity(row[value], unit)}, range {' to '.join(ends)}"


def communication_shares(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say in which configuration communication takes most of a step and in which least, per workload and phase.

    Args:
        rows: rows of macros.study_parts, those of a phase and of a workload together.
    """
    sentences = []
    has_one = len({r["workload"] for r in rows}) == 1
    for (phase, workload), found in groupby(rows, key=lambda r: (r["phase"], r["workload"])):
        shares = {r["configuration"]: r["communication"] for r in found}
        most, least = max(shares, key=shares.__getitem__), min(shares, key=shares.__getitem__)
        if len(shares) < 2 or shares[most] - shares[least] < _WORTH:
            continue
        step = "step" if phase in ("", "no phase") else f"{phase} step"
        sentences.append(
            f"Exposed communication takes {quantity(shares[most], 'ratio')} of the {step} at {most} and "
            f"{quantity(shares[least], 'ratio')} at {least}{'' if has_one else f' ({workload})'}."
        )
    return sentences


def early_weights(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say that products take less time than reading the weights would, from rows of macros.study_parts."""
    early = [r for r in rows if r["part"] == "matrix" and r["weights_ms"] and r["mean_ms"] < r["weights_ms"]]
    if not early:
        return []
    most = min(early, key=lambda r: r["mean_ms"] / r["weights_ms"])
    products, weights = (quantity(most[column], "ms") for column in ("mean_ms", "weights_ms"))
    others = f"; the same holds for {len(early) - 1} more" if len(early) > 1 else ""
    return [
        f"At {most['run']} matrix products take {products}, less than the {weights} for reading the weights at the "
        f"memory's peak: copies beside other work bring part of them earlier{others}."
    ]


def unfitting(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which configurations do not fit in the memory of a device, from rows of macros.study_points."""
    named = [
        f"{p['label']} ({quantity(p['memory_bytes'], 'bytes')} of {quantity(p['capacity_bytes'], 'bytes')})"
        for p in points
        if p["is_fitting"] is False
    ]
    return [f"Does not fit in the memory of a device: {'; '.join(named)}."] if named else []


def changes(causes: Sequence[Mapping[str, Any]], most: int = 4) -> list[str]:
    """Say how much longer or shorter a step is than the baseline's, and why: a sentence per phase.

    Args:
        causes: rows of macros.compare_steps of one split, or of macros.step_changes; the largest difference of a phase
            first.
        most: number of causes to name; those below half a percent of the baseline's step are not worth a word.
    """
    sentences = []
    for phase, of_phase in groupby(causes, key=lambda c: c["phase"]):
        rows = [c for c in of_phase if c["difference_us"] is not None]
        if not rows:
            sentences.append(f"No step of {phase or 'no phase'} has a time on both sides.")
            continue
        before, after = (sum(c[side] for c in rows) for side in ("baseline_us", "value_us"))
        difference = after - before
        worthy = [c for c in rows if abs(c["difference_us"]) >= _WORTH * before][:most]
        step = f"A {phase} step" if phase else "A step"
        sides = f"{quantity(after, 'us', 4)} against {quantity(before, 'us', 4)}"
        if not worthy:
            sentences.append(f"{step} takes as long, {sides}.")
            continue
        percent = f", {quantity(abs(difference) / before, 'ratio', 2)}," if before else ""
        verdict = f"{quantity(abs(difference), 'us', 4)}{percent} {'longer' if difference > 0 else 'shorter'}"
        named = "; ".join(f"{_cause(c)} {signed(c['difference_us'], 'us', 4)}" for c in worthy)
        sentences.append(f"{step} is {verdict}, {sides}: {named}.")
    return sentences


def _cause(row: Mapping[str, Any]) -> str:
    more = row.get("value_executions", 0) - row.get("baseline_executions", 0)
    name = short_name(str(row["name"]))
    if not more:
        return _PARTS.get(name, name)
    how = "fewer" if more < 0 else "more" if row["baseline_executions"] else "new"
    return f"{name}, {_digits(abs(more))} {how} execution{'' if abs(more) == 1 else 's'},"


_VERDICTS = {
    "unknown": "changed by an amount that may be noise",
    "not in run": "only in the baseline",
    "not in baseline": "only in the run",
}
"""For verdicts of macros.compare_values that need words, those."""


def verdicts(found: Sequence[str]) -> str:
    """Count the verdicts on the values of a comparison."""
    counts = [f"{_digits(n)} {_VERDICTS.get(verdict, verdict)}" for verdict, n in Counter(found).most_common()]
    said = f"Of {_digits(len(found))} values of metrics: {', '.join(counts)}."
    return f"{said} Repeats of the runs would tell their noise." if "unknown" in found else said


def measured(metric: str, dimensions: str) -> str:
    """A value of a metric as people say it: Device idle, prefill, device 0."""
    of = (
        f"{name.removesuffix('_id').replace('_', ' ')} {value}" if not isinstance(value, str) else value
        for name, value in json.loads(dimensions).items()
        if value is not None
    )
    return ", ".join([words_of(metric), *of])


def words_of(metric: str) -> str:
    """The name of a metric in words."""
    text = plain(metric)
    return text[:1].upper() + text[1:]


def plain(name: str) -> str:
    """The name of a metric or column in words, inside of a sentence."""
    return " ".join(_ABBREVIATIONS.get(word, word) for word in name.split("_"))


_ABBREVIATIONS = {name: name.upper() for name in ("ttft", "tpot", "mfu", "hbm", "ici", "kv", "gemm")} | {
    "comm": "communication",
    "e2e": "end-to-end",
    "moe": "MoE",
    "num": "number of",
}


def signed(value: float, unit: str, digits: int = 3) -> str:
    """A difference in words, with its sign."""
    return f"{'+' if value >= 0 else '-'}{quantity(abs(value), unit, digits)}"


def unknown(summary: RunSummary) -> list[tuple[str, str]]:
    """List the metrics that the run lacks, and why."""
    return [(", ".join(metrics), reason[:1].upper() + reason[1:]) for reason, metrics in summary.reasons.items()]
