"""A capture whose every name is an attack, from ingest to the page: nothing is executed, obeyed or lost."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tiny_capture import write_capture_directory
from xplane_builder import Ref, Space, Unsigned

from tracewarehouse.cli import run
from tracewarehouse.queries.output import text
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.warehouse import open_warehouse

EVIL = (
    "</script><script>alert(1)</script>",
    "'); DROP TABLE runs; --",
    "\x1b[2J\x1b]0;owned\x07",
    "a\nb\r\nc\td",
    "nul\0nul",
    "\u202egnp.exe\u2066",
    "\x9b31mC1",
    "{{7*7}}${x}<%= 1 %>",
    "=cmd|' /C calc'!A0",
    "../../../../etc/passwd",
    "\u2028line",
    "x" * 20_000,
)
US = 1_000_000
BAD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\u2066-\u2069]")
"""Control characters but for line ends, and marks that turn text round."""


def write_hostile(folder: Path) -> Path:
    """A capture directory of one device whose plane, lines, ops, steps, stats and files' texts are all hostile."""
    space = Space(hostnames=[EVIL[0]], errors=[EVIL[2]], warnings=[EVIL[3]])
    tpu = space.tpu(0)
    big = "%big = f32[2]{0} fusion(" + ", ".join(f"f32[2]{{0}} %p.{i}" for i in range(60_000)) + "), kind=kLoop"
    names = [*EVIL, big, "%a = f32[8]{0} all-reduce(f32[8]{0} %x), replica_groups=[1,131072]<=[131072]"]
    stats: dict[str, Any] = {"huge": Unsigned((1 << 64) - 1), EVIL[0]: EVIL[2], EVIL[5]: Ref(EVIL[1]), "raw": b"\xff\0"}
    for k, name in enumerate([*names, *(f"%op.{i} = f32[8]{{0}} add(%x, %y)" for i in range(3000))]):
        op = tpu.metadata(name, EVIL[k % 12] if k < 40 else "", {"tf_op": EVIL[k % 12], "hlo_category": EVIL[k % 11]})
        tpu.ops.event(op, k * US - 5 * US, 3 * US, **stats if k < 40 else {})
    tpu.ops.event(op, -(10**15), 5)
    for k, name in enumerate(EVIL):
        tpu.steps.event(name, k * 10 * US, 9 * US)
        tpu.modules.event(f"{name}({k})", k * 10 * US, 9 * US, run_id=Unsigned(k))
        thread = space.host().line(name) if k == 0 else space.planes[1].line(name)
        thread.event(name, 0, 5 * US, step_num=k, _r=1)
    space.plane(EVIL[0]).line(EVIL[1]).event(EVIL[2], 0, 1)
    path = folder / "plugins" / "profile" / "now" / "vm.xplane.pb"
    space.write(path)
    # invalid UTF-8 in the place of a name
    path.write_bytes(path.read_bytes().replace(b"nul\0nul", b"nul\0n\xff\xfe"))
    manifest = {
        "name": EVIL[0] + EVIL[2] + EVIL[3],
        "model": {"name": EVIL[1], "family": EVIL[5]},
        "dtype": EVIL[9], "batch_size": 1, "input_length": 1, "output_length": 1, "mesh": {"axes": {"tp": 1}},
        "hosts": [EVIL[9], "/etc/passwd"],
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "card.yaml").write_text(json.dumps({"description": EVIL[0], "extra": EVIL[2]}))
    return folder


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    capture = write_hostile(folder / "capture")
    assert run(["-w", str(folder / "wh"), "ingest", str(capture)]) == 0
    return folder / "wh"


QUERIES = (
    "SELECT * FROM runs", "SELECT * FROM hosts", "SELECT * FROM instructions WHERE length(name) < 100",
    "SELECT * FROM lines", "SELECT * FROM plane_stats", "SELECT * FROM host_events",
    "SELECT * FROM metrics.all_values LIMIT 200", "SELECT * FROM quality_flags",
)  # fmt: skip


def test_nothing_is_lost(warehouse: Path) -> None:
    with open_warehouse(warehouse) as opened:
        names = {n for (n,) in opened.query("SELECT name FROM instructions").rows()}
        assert len(names & set(EVIL)) >= len(EVIL) - 1
        assert opened.query("SELECT count(*) FROM instructions").scalar() >= 3000
        assert opened.query("SELECT max(length(hlo_text)) FROM instructions").scalar() > 900_000
        assert opened.query("SELECT count(*) FROM ops").scalar() >= len(EVIL) + 2 + 3000 + 1
        assert opened.query("SELECT min(duration_ps) FROM ops").scalar() >= 0


@pytest.mark.parametrize("sql", QUERIES)
def test_tables_and_json_drive_no_terminal(warehouse: Path, sql: str) -> None:
    with open_warehouse(warehouse) as opened:
        table = next((t for t in QUERIES if t == sql), sql)
        result = opened.query(table)
    for format_, width in (("table", None), ("table", 80), ("csv", 80), ("json", None), ("ndjson", None)):
        found = BAD.search("".join(text(result, format_, width)))  # type: ignore[arg-type]
        assert found is None, (format_, found)


def test_files_have_names_as_they_are(warehouse: Path) -> None:
    with open_warehouse(warehouse) as opened:
        result = opened.query("SELECT name FROM instructions WHERE length(name) < 100 ORDER BY name")
    written = "".join(text(result, "csv"))
    assert [r for (r,) in csv.reader(io.StringIO(written, newline=""))][1:] == [n for (n,) in result.rows()]


def test_commands_print_names_harmlessly(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["runs", "--notes"], ["runs", "--format", "json"], ["metrics", "values"], ["audit"], ["build"]):
        assert run(["-w", str(warehouse), *arguments]) in (0, 1)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert BAD.search(out) is None, arguments
        assert BAD.search(err) is None, arguments


def test_the_page_shows_names_and_runs_none(warehouse: Path, tmp_path: Path) -> None:
    assert run(["-w", str(warehouse), "report", "-o", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "</script><script>" not in page
    assert page.count("<script") == page.count("</script")


def test_a_gzip_bomb_is_refused_and_allowed_by_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bomb = tmp_path / "bomb.trace.json.gz"
    bomb.write_bytes(gzip.compress(b'[{"ph":"X","ts":1,"dur":1,"name":"a"}]' + b" " * (80 << 20), 1))
    for arguments in (["ingest", str(bomb)], ["query", str(bomb), "SELECT count(*) AS n FROM runs"]):
        place = ["-w", str(tmp_path / "wh")]
        assert run([*place, *arguments]) == 1
        err = capsys.readouterr().err
        assert "over 200 times its size" in err
        assert "--max-gzip-ratio" in err
        assert run([*place, *arguments, "--max-gzip-ratio", "5000"]) == 0


def test_links_are_not_followed_out_of_a_folder(tmp_path: Path) -> None:
    from tracewarehouse.ingest.capture.sources import find_captures
    from tracewarehouse.ingest.errors import NoCaptureError, SkippedEntryWarning

    outside = write_capture_directory(tmp_path / "outside") / "plugins/profile/2026_01_01_00_00_00/vm.xplane.pb"
    (tmp_path / "outside" / "card.yaml").write_text("description: x")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a.xplane.pb").symlink_to(outside)
    (inside / "folder").symlink_to(outside.parent)
    with pytest.raises(NoCaptureError, match=r"left out .*a\.xplane\.pb \(a link to another place\), .*folder \("):
        find_captures(inside)
    (inside / "b.xplane.pb").write_bytes(outside.read_bytes())
    (inside / "c.xplane.pb").symlink_to("b.xplane.pb")
    (inside / "manifest.json").symlink_to("/etc/passwd")
    (inside / "card.yaml").symlink_to(tmp_path / "outside" / "card.yaml")
    with pytest.warns(SkippedEntryWarning):
        found = find_captures(inside)
    assert {f.name for c in found for f in c.files} == {"b.xplane.pb", "c.xplane.pb"}
    assert {(c.manifest, c.card) for c in found} == {(None, None)}
    # what a user names himself is read
    assert [c.files for c in find_captures(inside / "a.xplane.pb")] == [(inside / "a.xplane.pb",)]


ODD = [
    "a" * 5000,
    "../" * 2000,
    "no\x1b[2Jwhere",
    "/dev/null",
    "/proc/self/mem",
    "-",
    "~root",
    "file:///etc/passwd",
]


@pytest.mark.parametrize("path", ODD, ids=range(len(ODD)))
def test_odd_paths_and_runs_end_in_a_sentence(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["-w", str(tmp_path / "wh")]
    for arguments in (
        [*place, "ingest", "--", path],
        [*place, "query", "--", path, "SELECT 1"],
        ["-w", path, "runs"],
        [*place, "report", "-o", str(tmp_path / "r.html"), "--", path],
    ):
        assert run(arguments) in (1, 2), arguments
        err = capsys.readouterr().err
        assert "Traceback" not in err
        assert BAD.search(err) is None


def test_text_on_a_terminal_is_escaped_and_in_a_file_as_it_is() -> None:
    names = ["\x1b[2J", "\x9b31m", "a\nb", "\u202egnp", "nul\0", "é"]
    result = QueryResult(pa.table({"name": names}))
    for format_, width in (("table", None), ("table", 20), ("csv", 80), ("json", None), ("ndjson", None)):
        assert BAD.search("".join(text(result, format_, width))) is None, format_
    assert [row["name"] for row in json.loads("".join(text(result, "json")))] == names
    written = "".join(text(result, "csv"))
    assert [r[0] for r in csv.reader(io.StringIO(written, newline=""))][1:] == names


def test_sums_beyond_64_bits_leave_their_metrics_without_a_value_and_all_others_with_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = Space(hostnames=["h"])
    tpu = space.tpu(0)
    huge = {"flops": 2**62, "model_flops": 2**62, "bytes_accessed": 2**62}
    op = tpu.instruction(
        "%fusion.1 = bf16[8]{0} fusion(bf16[8]{0} %a), kind=kLoop",
        hlo_category="loop fusion",
        program_id=Unsigned(1),
        **huge,
    )
    for step in range(4):
        tpu.modules.event("jit_decode(1)", step * 10_000_000, 8_000_000, run_id=Unsigned(step + 1))
        tpu.ops.event(op, step * 10_000_000, 8_000_000)
    capture = space.write(tmp_path / "huge.xplane.pb")
    place = ["-w", str(tmp_path / "wh")]
    assert run([*place, "ingest", str(capture)]) == 0
    metrics = "faster_chips_v1, hbm_bandwidth_v1, layer_bottleneck_v1, mfu_v1"
    note = f"numbers too large for 64 bits leave these metrics without a value: {metrics}"
    assert note in capsys.readouterr().err
    assert run([*place, "metrics", "values", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert not {"hbm_bandwidth", "mfu"} & {r["metric"] for r in rows}
    assert not [r for r in rows if r["value"] is None]
    [tpot] = [r["value"] for r in rows if r["metric"] == "tpot"]
    assert tpot == pytest.approx(10 / 1000)
    assert run([*place, "audit"]) == 1
    assert "value_beyond_range: Numbers do not fit 64 bits" in capsys.readouterr().out


def test_times_that_add_up_beyond_64_bits_do_not_end_an_ingest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = Space(hostnames=["h"])
    for device in range(5):
        tpu = space.tpu(device)
        op = tpu.instruction("%fusion.1 = bf16[8]{0} fusion(bf16[8]{0} %a), kind=kLoop", program_id=Unsigned(1))
        for step, start in enumerate((0, 1 << 61)):
            tpu.modules.event("jit_decode(1)", start, 1 << 61, run_id=Unsigned(step + 1))
            tpu.ops.event(op, start, 1 << 61)
    capture = space.write(tmp_path / "long.xplane.pb")
    place = ["-w", str(tmp_path / "wh")]
    assert run([*place, "ingest", str(capture)]) == 0
    assert (
        "numbers too large for 64 bits leave these metrics without a value: load_imbalance" in capsys.readouterr().err
    )
    assert run([*place, "metrics", "values", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {r["metric"] for r in rows}
    assert not [r for r in rows if r["value"] is None]
