"""Reports: what is said in words, how absence is told, and that names from captures are data in every format."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import vl_convert

from tracewarehouse.cli import run
from tracewarehouse.dashboards import words, writing
from tracewarehouse.dashboards.registry import RUN_CHARTS
from tracewarehouse.dashboards.report import Report, comparison_report, run_report, study_report
from tracewarehouse.dashboards.vega import vega_script
from tracewarehouse.dashboards.writing import folded, prose, report_text, write_pictures, write_text
from tracewarehouse.ingest.errors import MetricError, QueryError, WarehouseError
from tracewarehouse.queries.run_summary import Evenness, Missing, Number, RunFlag, StepShare
from tracewarehouse.warehouse import Warehouse

pytestmark = pytest.mark.usefixtures("asked_once")

HOSTILE = "<script>alert('x')</script>"
"""Name of the run of the host alone."""


@pytest.fixture(scope="module")
def both(warehouse: Warehouse) -> Report:
    """The report about the run of two devices and the one of the host alone."""
    return run_report(warehouse, [r.run_id for r in warehouse.lake.runs()])


def test_words_have_the_numbers(warehouse: Warehouse) -> None:
    """A prefill step of 150 us: 48 us compute, 31 us exposed communication, 71 us idle."""
    [section] = run_report(warehouse, ["tiny-tp2"]).sections
    assert section.words[:2] == [
        "Idle time takes 47.3 % of a decode step (71 µs of 150 µs), then exposed communication 20.7 %; "
        "idle time takes 47.3 % of a prefill step (71 µs of 150 µs), then exposed communication 20.7 %.",
        "Devices that never idle would shorten a decode step by at most 47.3 % (71 µs), "
        "a prefill step by at most 47.3 % (71 µs).",
    ]
    assert [section.evidence[w] for w in section.words[:2]] == ["idle", "idle"]
    assert (
        "Peaks",
        "matrix units 918 TFLOP/s, memory 1.64 TB/s, links 400 GB/s (capture and hardware table)",
    ) in section.facts
    assert any(label == "Captured" and "2023-11-14" in text for label, text in section.facts)


def test_only_the_charts_that_are_asked_for_are_drawn(warehouse: Warehouse, recorded: Warehouse) -> None:
    [section] = run_report(warehouse, ["tiny-tp2"], ["traffic", "steps", "roofline"]).sections
    assert [f.name for f in section.figures] == ["steps", "traffic"]
    assert [name for name, _ in section.absent] == ["roofline"]
    [study] = study_report(recorded, "SELECT run_id FROM main.runs", ["pareto"]).sections
    assert [f.name for f in study.figures] == ["pareto"]
    with pytest.raises(WarehouseError, match="no chart pareto here; there are timeline, steps, "):
        run_report(warehouse, ["tiny-tp2"], ["pareto"])


def test_a_chart_without_data_says_why(both: Report) -> None:
    [host_alone] = [s for s in both.sections if s.title == HOSTILE]
    assert host_alone.figures == []
    assert [name for name, _ in host_alone.absent] == list(RUN_CHARTS)
    assert dict(host_alone.absent)["top-ops"].startswith("The capture holds no op of a device")
    assert host_alone.unknown


def test_page_stands_alone_and_escapes_names(both: Report) -> None:
    page = report_text(both, "html")
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in page
    markup = re.sub(r"<script\b.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<(link|img|iframe)\b|\ssrc\s*=|url\(", markup)
    assert not re.search(r"<script[^>]*\ssrc\s*=", page)
    [content] = re.findall(r'<script type="application/json" id="content">(.*?)</script>', page, re.DOTALL)
    charts = json.loads(content)["charts"]
    assert list(charts) == [name for name, _ in both.figures()]
    assert all(c["$schema"].startswith("https://vega.github.io/schema/vega-lite/") for c in charts.values())


def test_what_stands_between_backticks_is_code_and_nothing_else_is_markup() -> None:
    assert prose("`--step P` or `, <b>") == "<code>--step P</code> or `, &lt;b&gt;"


@pytest.mark.parametrize("said", ["97 %", "311 µs", "1.35 GB", "918 TFLOP/s", "423 tokens/s", "2 s", "-16.84 ms"])
def test_a_number_and_its_unit_stay_on_one_line(said: str) -> None:
    whole = said.replace(" ", "\u00a0").replace("-", "\u2212")
    assert prose(f"takes ({said}), then") == f"takes ({whole}), then"


def test_names_with_hyphens_stay_on_one_line_and_other_words_do_not() -> None:
    assert prose("all-to-all over tp, --mesh") == '<span class="whole">all-to-all</span> over tp, --mesh'
    assert prose("15 steps, 2 swaps, 3 Bs") == "15 steps, 2 swaps, 3 Bs"
    assert prose("`5 ms-long`") == "<code>5 ms-long</code>"


def test_headings_are_in_order_and_every_link_leads_somewhere(both: Report) -> None:
    markup = re.sub(r"<script\b.*?</script>", "", report_text(both, "html"), flags=re.DOTALL)
    levels = [int(level) for level in re.findall(r"<h([1-6])", markup)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    places = re.findall(r'\sid="([^"]+)"', markup)
    assert len(places) == len(set(places))
    assert set(re.findall(r'href="#([^"]+)"', markup)) <= set(places)


def test_digest_is_markdown_in_which_names_are_text(both: Report) -> None:
    digest = report_text(both, "md")
    assert digest.startswith("# 2 runs\n")
    assert "<" not in digest
    assert "&#60;script&#62;" in digest
    assert "| TTFT, host | 140 µs | 1 prefill step |" in digest
    assert "What cannot be known:" in digest


def test_json_has_the_rows_of_every_chart(both: Report) -> None:
    content = json.loads(report_text(both, "json"))
    found = {(s["title"], c["name"]): c["rows"] for s in content["sections"] for c in s["charts"]}
    assert found == {(s.title, f.name): json.loads(json.dumps(f.rows)) for s in both.sections for f in s.figures}


def test_pictures_have_names_that_differ(both: Report, tmp_path: Path) -> None:
    both = Report("", [s for s in both.sections if s.figures])
    both.sections[0].figures[:] = [f for f in both.sections[0].figures if f.name in ("steps", "traffic")]
    paths = write_pictures(both, tmp_path / "pictures", "svg")
    assert [p.name for p in paths] == ["steps.svg", "traffic.svg"]
    assert all(p.read_text().startswith("<svg") for p in paths)
    (tmp_path / "file").write_text("")
    with pytest.raises(WarehouseError, match="the charts cannot be written"):
        write_pictures(both, tmp_path / "file" / "below", "svg")


def test_page_that_cannot_be_written_is_an_error(both: Report, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WarehouseError, match="the report cannot be written"):
        write_text(both, tmp_path / "file" / "report.html")
    assert write_text(both, tmp_path / "out" / "r.md", "md").read_text() == report_text(both, "md")


def test_comparison_adds_up_in_words_and_values(recorded: Warehouse) -> None:
    with pytest.raises(MetricError, match="--force compares"):
        comparison_report(recorded, "llama-tp4-sp-b4-i16-o9", "llama-tp4-b4-i16-o17")
    report = comparison_report(recorded, "llama-tp4-sp-b4-i16-o9", "llama-tp4-b4-i16-o17", is_unlike_allowed=True)
    changed, *sides = report.sections
    splits = ("part", "layer", "category", "collective", "operation")
    assert [f.name for f in changed.figures] == [*(f"differences-{s}" for s in splits), "mean-layers"]
    assert [f.name for f in changed.first] == ["differences-part"]
    assert [f.name for f in changed.plain] == ["mean-layers"]
    assert 0 < len(changed.tiles) <= 10
    assert [s.title for s in sides] == ["llama-tp4-sp-b4-i16-o9", "llama-tp4-b4-i16-o17"]
    rows = changed.figures[1].rows
    for phase in ("prefill", "decode"):
        own = [r for r in rows if r["phase"] == phase]
        before, after, change = (sum(r[k] for r in own) for k in ("baseline_us", "value_us", "difference_us"))
        assert before + change == pytest.approx(after)
        assert any(w.startswith(f"A {phase} step is ") for w in changed.words)
    assert re.fullmatch(r"Of \d+ values of metrics: .*\.", changed.words[-1])
    assert [bar.heading.partition(". ")[0] for bar in changed.bars] == [s.title for s in sides for _ in s.bars]
    [tpot] = [v for v in changed.values if v.metric == "tpot"]
    assert tpot.columns == ("of", "baseline", "run", "change", "verdict")
    verdicts = re.findall(r"\| (worse|better|unknown|different) \|$", report_text(report, "md"), re.MULTILINE)
    assert verdicts
    assert verdicts == sorted(verdicts, key=["worse", "better", "unknown", "different"].index)


def test_study_of_a_query(recorded: Warehouse) -> None:
    report = study_report(recorded, "SELECT run_id FROM main.runs WHERE model_family = 'llama'")
    [section] = report.sections
    assert section.title == "Study of 2 runs"
    assert {f.name for f in section.figures} == {
        "pareto",
        "study-parts",
        "parallelisms",
        "mean-layers",
        "tpot-over-time",
    }
    absent = dict(section.absent)
    assert absent.keys() == {"scaling", "sweep", "overlap-ratio-against-step-time", "faster-links"}
    assert absent["faster-links"] == "No run on devices with links has exposed collectives in its steps."
    assert [row[0] for row in section.values[0].rows] == ["llama-tp4-b4-i16-o17", "llama-tp4-sp-b4-i16-o9"]


def test_a_study_says_first_which_configuration_is_best(recorded: Warehouse) -> None:
    """Runs by name are a study as those of a query are; what was recorded has no range and no word on predictions."""
    names = ["llama-tp4-b4-i16-o17", "deepseek_v2-ep4-b4-i16-o9"]
    [section] = study_report(recorded, names, refused=[("llama tp=1", "does not fit: 141 GB")]).sections
    assert section.words[-1] == "1 more configurations cannot be; the last table says why."
    assert section.values[-1].rows == [("llama tp=1", "does not fit: 141 GB")]
    assert section.title == "Study of 2 runs"
    assert not any("redicted" in sentence for sentence in section.words)
    assert section.notes == [
        "Recorded on virtual CPU devices: what ran and what moved is real, the times are not a TPU's."
    ]
    llama = ["llama-tp4-b4-i16-o17", "llama-tp4-sp-b4-i16-o9"]
    [first, *_] = study_report(recorded, llama).sections
    assert first.values[0].columns[:3] == ("name", "workload", "label")


def test_several_runs_on_the_command_line_are_a_study(recorded: Warehouse, tmp_path: Path) -> None:
    """Unless a chart of a single run is asked for, which each of them then has."""
    page, names = tmp_path / "r.md", ["llama-tp4-b4-i16-o17", "llama-tp4-sp-b4-i16-o9"]
    asked = ["-w", str(recorded.path), "report", *names, "-o", str(page)]
    assert run([*asked, "--chart", "pareto"]) == 0
    assert page.read_text().startswith("# Study of 2 runs\n")
    assert run([*asked, "--chart", "steps"]) == 0
    assert page.read_text().startswith("# 2 runs\n")


def test_words_of_choices() -> None:
    best = {
        "workload": "m", "purpose": "one user", "unit": "tokens/s per user", "configuration": "tp=8", "value": 674.0,
        "low": 491.0, "high": 849.0, "next_configuration": "tp=4", "next_value": 352.0, "next_low": None,
        "next_high": None, "is_within_range": False,
    }  # fmt: skip
    assert words.choices([best]) == [
        "For one user: tp=8, 674 tokens/s per user, range 491 to 849; the best alternative is tp=4, 352.",
        "For the first token and for most tokens per chip fewer than two configurations are known.",
    ]
    first = best | {"purpose": "the first token", "unit": "ms", "value": 3.0, "low": None, "next_value": 2000.0}
    assert words.choices([first | {"is_within_range": True}])[:1] == [
        "For the first token: tp=8, 3 ms; the best alternative is tp=4, 2 s. "
        "Their ranges overlap, so either may be better.",
    ]
    in_decode = first | {"purpose": "most tokens per chip in decode"}
    assert words.choices([best, first, in_decode])[3:] == []
    many = [first | {"workload": f"m{i}"} for i in range(8)]
    too_few = "for one user and for most tokens per chip fewer than two configurations are known."
    assert words.choices(many)[0] == f"m0: for the first token tp=8 (3 ms); {too_few}"
    assert words.choices(many)[6:] == ["2 more workloads have a choice; macros.study_choices has them all."]
    assert words.choices([first | {"workload": m, "is_within_range": m == "m0"} for m in ("m0", "m1")]) == [
        f"m0: for the first token tp=8 (3 ms), or tp=4, whose range overlaps; {too_few}",
        f"m1: for the first token tp=8 (3 ms); {too_few}",
    ]
    assert words.choices([]) == []
    ranged = {"next_low": 300.0, "next_high": 510.0, "is_within_range": True}
    assert words.choices([best | ranged])[0] == (
        "For one user: tp=8, 674 tokens/s per user, range 491 to 849; the best alternative is tp=4, 352, "
        "range 300 to 510. Their ranges overlap, so either may be better."
    )


def test_answers_on_devices_and_layers(warehouse: Warehouse) -> None:
    known = replace(warehouse.summary("tiny-tp2"), missing=[])
    evenness = [
        Evenness("decode", 4, 1.0, 2, 4, 0, 0.005),
        Evenness("prefill", 4, 1.73, 1, 8, 7, -0.5),
        Evenness("mixed", 4, None, None, 3, 0, 4.68),
    ]
    said = dict(words.answers(replace(known, evenness=evenness)))
    assert said["Balance of devices"] == (
        "even in decode over all steps, device 2 computes 0 % longer than the mean; "
        "uneven in prefill over all steps, device 1 computes 73 % longer than the mean"
    )
    assert said["Odd layer"] == (
        "none, all 4 within 0.5 % of the median in decode; layer 7, 50 % shorter than the median of 8 in prefill; "
        "too few to tell, 3 layers in mixed; over 2 % counts as odd"
    )
    one = [Evenness(None, 1, 1.0, 0, None, None, None)]
    lacking = [
        Missing("load_imbalance", 1, "several_devices", "only one device is in the capture."),
        Missing("layer_time", 1, "layers", "no op has a layer; name them."),
    ]
    said = dict(words.answers(replace(known, evenness=one, missing=lacking)))
    assert said["Balance of devices"] == "only one device is in the capture"
    assert said["Odd layer"] == "no op has a layer; name them"
    assert said["Missing"] == (
        "2 metrics. 1 of 2 (layer time): no op has a layer; name them. "
        "The end of the page has the reasons of the other 1"
    )
    names = ("comm_to_compute", "decode_cost", "e2e_latency", "tpot")
    decodes = [Missing(name, 1, "decode", "no step is a decode; record for longer.") for name in names]
    assert dict(words.answers(replace(known, missing=decodes)))["Missing"] == (
        "4 metrics. 4 of 4 (TPOT, communication to compute, decode cost, 1 more): no step is a decode; "
        "record for longer"
    )


def test_a_median_far_from_the_mean_is_said() -> None:
    """Of a step of 5 ms, 4 ms are far and 4.1 ms are not."""
    shares = [StepShare("decode", part, at, 0.5, 2.5, 4, 4.1) for at, part in ((0, "matrix"), (5, "idle"))]
    assert words.median_apart(shares) == ""
    far = [replace(s, median_ms=3.9) for s in shares]
    waiting = [replace(shares[0], part="waiting for copies", copied_gbps=40.6), shares[1]]
    assert words.takes(waiting) == (
        "Waiting for copies takes 50 % of a decode step (2.5 ms of 5 ms; copies move 40.6 GB/s on a device), then idle "
        "50 %."
    )
    assert words.median_apart(far) == "; the median step takes 3.9 ms"


def test_virtual_devices_have_no_links(warehouse: Warehouse) -> None:
    """They take turns, so that neither collectives nor idle time tell anything; on a TPU the same savings are said."""
    on_tpu = warehouse.summary("tiny-tp2")
    assert "shorter" in dict(words.answers(on_tpu))["Links twice as fast"]
    assert any("inks twice as fast" in sentence for sentence, _ in words.findings(on_tpu))
    virtual = replace(on_tpu, facts=on_tpu.facts | {"backend": "cpu"})
    assert dict(words.answers(virtual))["Links twice as fast"] == "the devices are virtual, they have no links"
    assert any("never idle" in sentence for sentence, _ in words.findings(on_tpu))
    virtually = " ".join(sentence for sentence, _ in words.findings(virtual))
    assert "inks twice as fast" not in virtually
    assert "never idle" not in virtually


def test_products_faster_than_their_weights_are_explained() -> None:
    """Of 0.5, 0.8 and 3 ms of products, two are shorter than reading the weights; unknown ones say nothing."""
    rows = [
        {"run": f"tp={n}", "part": "matrix", "mean_ms": t, "weights_ms": 1.2} for n, t in ((8, 0.5), (4, 0.8), (2, 3))
    ]
    assert words.early_weights(rows) == [
        "At tp=8 matrix products take 500 µs, less than the 1.2 ms for reading the weights at the memory's peak: "
        "copies beside other work bring part of them earlier; the same holds for 1 more."
    ]
    unknown = [rows[0] | {"weights_ms": None}, rows[0] | {"part": "idle"}]
    assert words.early_weights([*rows[2:], *unknown]) == []


def test_words_of_a_comparison() -> None:
    """Four digits, so that the causes add up to the difference: -16.84 + 10.5 + 3.84 + 1.05 = -1.45."""
    sides = (("matrix", 42300, 25460), ("other compute", 3440, 13940), ("attention", 17000, 20840))
    rows = [
        {"phase": "prefill", "name": n, "baseline_us": b, "value_us": v, "difference_us": v - b} for n, b, v in sides
    ]
    sent = {"name": "all-to-all over tp", "baseline_us": 0, "value_us": 1050, "difference_us": 1050}
    rows.append(rows[0] | sent | {"baseline_executions": 0, "value_executions": 128})
    assert words.changes(rows) == [
        "A prefill step is 1.45 ms, 2.3 %, shorter, 61.29 ms against 62.74 ms: matrix products -16.84 ms; "
        "other compute +10.5 ms; attention +3.84 ms; all-to-all over tp, 128 new executions, +1.05 ms."
    ]
    assert words.verdicts(["unknown", "unknown", "same", "not in run"]) == (
        "Of 4 values of metrics: 2 changed by an amount that may be noise, 1 same, 1 only in the baseline. "
        "Repeats of the runs would tell their noise."
    )


def test_answers_are_numbers_of_the_run_or_say_why_not(warehouse: Warehouse) -> None:
    [tiny] = run_report(warehouse, ["tiny-tp2"], ["steps"]).sections
    summary = warehouse.summary("tiny-tp2")
    said = dict(tiny.answers)
    assert said["Missing"].startswith(f"{len(summary.missing)} metrics. ")
    assert "is not predicted" not in said["Missing"]
    loads = warehouse.query("SELECT phase, compute_imbalance FROM metrics.load_imbalance WHERE phase <> 'outside'")
    for phase, imbalance in loads.rows():
        by = words.quantity(imbalance - 1, "ratio", 2)
        assert re.search(rf"in {phase} over all steps, device \d computes {by} longer", said["Balance of devices"])
    for share in (s for s in summary.steps if s.part == "exposed communication"):
        assert f"{words.quantity(share.mean_ms, 'ms')}, " in said["Exposed communication"]
    flags = [RunFlag("inferred_axes", None, "", ""), RunFlag("inferred_steps", None, "", "")]
    assert dict(words.answers(replace(summary, flags=flags)))["Inferred"] == "mesh, steps or their phases"
    none = dict(words.answers(replace(summary, flags=[], missing=[])))
    assert (none["Inferred"], none["Missing"]) == (
        "nothing: marks, names or the collector's manifest state it",
        "nothing",
    )


def test_links_that_have_no_number_say_why(warehouse: Warehouse) -> None:
    """Of a run whose collectives all run outside of its steps."""
    summary = warehouse.summary("tiny-tp2")
    inside = [s for s in summary.steps if s.part != "exposed communication"]
    outside = Number("exposed_communication", "Exposed communication", "outside", 365.0, "ms", None)
    reason = "no collective runs in a step whose time is known; profile whole steps."
    lacking = [Missing("faster_links", 1, "collectives_in_steps", reason)]
    said = dict(words.answers(replace(summary, steps=inside, numbers=[outside], savings=[], missing=lacking)))
    assert said["Exposed communication"] == "none in a step; 365 ms outside of the steps"
    assert said["Links twice as fast"] == reason.rstrip(".")


def test_values_of_metrics_in_words() -> None:
    assert words.measured("hbm_bandwidth", '{"phase": "prefill", "device_id": 0}') == "HBM bandwidth, prefill, device 0"
    assert words.measured("comm_to_compute", '{"phase": null}') == "Communication to compute"


def test_words_of_what_does_not_fit() -> None:
    point = {"label": "tp=1", "memory_bytes": 16.1e9, "capacity_bytes": 16e9}
    points = [point | {"is_fitting": fits} for fits in (False, True, None)]
    assert words.unfitting(points) == ["Does not fit in the memory of a device: tp=1 (16.1 GB of 16 GB)."]
    assert words.unfitting(points[1:]) == []


def test_a_page_folds_the_charts_beyond_its_size() -> None:
    """The first two fill the page; a small one behind them waits as well."""
    charts = {name: {"rows": "x" * size} for name, size in (("a", 400), ("b", 400), ("c", 400), ("d", 1))}
    assert folded(charts, 1_000, 100) == ["c", "d"]
    assert folded(charts, 2_000, 100) == []


def test_a_page_folds_the_charts_beyond_its_marks() -> None:
    """30 rows in one layer, 20 rows in each of two layers of a facet: 30 marks, then 70."""
    rows = {"rows": [{}] * 30}
    charts = {"a": {"datasets": rows}, "b": {"datasets": {"rows": [{}] * 20}, "spec": {"layer": [{}, {}]}}}
    assert folded(charts, 2_000, 70) == []
    assert folded(charts, 2_000, 69) == ["b"]
    assert folded(charts, 2_000, 29) == ["a", "b"]


def test_a_folded_chart_is_said_and_not_drawn(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run_report(warehouse, ["tiny-tp2"], ["steps", "traffic"])
    assert '<details class="folded">' not in report_text(report, "html")
    monkeypatch.setattr(writing, "MOST_BYTES", 1)
    page = report_text(report, "html")
    assert "so its last 2 charts are drawn when you open them" in page
    assert page.count('<details class="folded">') == 2


def test_a_study_needs_runs(recorded: Warehouse) -> None:
    with pytest.raises(WarehouseError, match="needs a query with a column run_id; this one has name"):
        study_report(recorded, "SELECT name FROM main.runs")
    with pytest.raises(WarehouseError, match="gives no run"):
        study_report(recorded, "SELECT run_id FROM main.runs WHERE false")
    with pytest.raises(QueryError):
        study_report(recorded, "DROP TABLE x")


def test_the_script_of_vega_is_kept_and_made_anew_if_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    bundled = vl_convert.javascript_bundle()
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda: made.append(1) or bundled)

    def script(cache: str) -> str:
        monkeypatch.setenv("TRACEWAREHOUSE_CACHE", cache)
        vega_script.cache_clear()
        return vega_script()

    assert script(str(tmp_path)) == script(str(tmp_path)) == bundled
    assert len(made) == 1
    [kept] = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert script(str(tmp_path)) == script(str(tmp_path)) == bundled
    assert len(made) == 2
    assert script("/dev/null/nowhere") == bundled
    assert len(made) == 3
    vega_script.cache_clear()
