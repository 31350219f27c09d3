"""`tw export chrome` and `tw export ccl-bench` from the command line: what they print, write and refuse."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import pytest
from conftest import ROOT
from served_capture import write_served_capture

from tracewarehouse import cli
from tracewarehouse.ingest.capture.run_options import RunOptions
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.warehouse import open_warehouse


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with the run `served`."""
    made = tmp_path_factory.mktemp("commands")
    with open_warehouse(made / "warehouse", create=True) as warehouse:
        warehouse.ingest(write_served_capture(made / "served.xplane.pb", 4))
    return made / "warehouse"


def test_a_chrome_trace_is_named_after_its_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["-w", str(folder), "export", "chrome", "served"]) == 0
    assert capsys.readouterr().out == "served.trace.json\n"
    assert json.loads((tmp_path / "served.trace.json").read_text())["traceEvents"]


def test_several_hosts_are_written_so_that_they_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file per host without -o; a file of that name is for viewers, and says so, when written and when ingested."""
    monkeypatch.chdir(tmp_path)
    name = "llama-pp2tp2-b4-i16-o5-hosts2"
    ingest_one(ROOT / "data" / "captures" / name, tmp_path / "warehouse")
    command = ["-w", "warehouse", "export", "chrome", name]
    assert cli.run(command) == 0
    files = [f"{name}/plugins/profile/{name}/host{n}.trace.json.gz" for n in range(2)]
    assert capsys.readouterr() == ("".join(f"{file}\n" for file in files), "")
    assert cli.run([*command, "-o", "merged.json"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "merged.json\n"
    assert "for viewers; name a folder to get files that `tw ingest` reads" in shown.err
    for written in (name, "merged.json"):
        ingest_one(tmp_path / written, tmp_path / "again")
    with open_warehouse(tmp_path / "again") as again:
        found = again.query(
            "SELECT r.name, count(d.device_id) FROM main.runs AS r LEFT JOIN main.devices AS d USING (run_id) "
            "GROUP BY r.name"
        )
        assert sorted(found.rows()) == [(f"{name}/{name}", 4), ("merged", 0)]
        notes = again.query("SELECT detail FROM main.quality_flags WHERE flag = 'profiler_warning'").scalar()
    assert "one file of 2 hosts (host0, host1): their devices are not read" in notes


def test_several_runs_go_into_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warehouse, out = tmp_path / "warehouse", tmp_path / "traces"
    two_hosts = "llama-pp2tp2-b4-i16-o5-hosts2"
    ingest_one(ROOT / "data" / "captures" / two_hosts, warehouse)
    ids = []
    for number in (2, 3):
        capture = write_served_capture(tmp_path / f"{number}.xplane.pb", number)
        ids.append(ingest_one(capture, warehouse, RunOptions(name="served")).run_id)
    command = ["-w", str(warehouse), "export", "chrome", *ids, two_hosts, ids[0]]
    assert cli.run([*command, "-o", str(out)]) == 0
    served = [f"served-{run_id}.trace.json" for run_id in ids]
    hosts = [f"{two_hosts}/plugins/profile/{two_hosts}/host{n}.trace.json.gz" for n in range(2)]
    assert capsys.readouterr().out.splitlines() == [str(out / name) for name in [*served, *hosts]]
    first, second = (json.loads((out / name).read_text())["traceEvents"] for name in served)
    assert len(first) == len(second)
    assert first != second
    assert cli.run([*command, "-o", str(tmp_path / "all.json")]) == 2
    assert "is one file, and 4 runs are asked for; name a folder" in capsys.readouterr().err


def test_errors_name_the_run_and_the_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["-w", str(folder), "export", "chrome", "nothing", "-o", str(tmp_path / "x.json")]) == 1
    assert "no run 'nothing'" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert cli.run(["-w", str(folder), "export", "chrome", "served", "-o", str(tmp_path / "file" / "x.json")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_rows_are_printed_and_warnings_go_to_standard_error(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["-w", str(folder), "export", "ccl-bench", "served", "--out", str(tmp_path)]
    assert cli.run(command) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{tmp_path / 'served-tpu'}\n{tmp_path / 'website' / 'parquet'}\n"
    assert "warning: served-tpu: no public trace_url" in shown.err
    assert cli.run([*command, "--name", "qwen3-4b-tp2-tpu"]) == 0
    assert (tmp_path / "qwen3-4b-tp2-tpu" / "qwen3-4b-tp2-tpu.yaml").is_file()
    assert cli.run([*command, "served", "--name", "a-tpu"]) == 2
    assert cli.run([*command, "--name", "qwen3"]) == 1
    assert "if 'tpu' is in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["ccl-bench", "served", "--out", ""],
        ["duckdb", "served", "-o", "runs.duckdb"],
        ["chrome", "served", "-o", "served.trace.json"],
        ["perfetto", "served", "-o", "served.pftrace"],
        ["rows", "ops", "-o", "ops.parquet"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_cannot_be_written_is_named_and_leaves_no_part(
    arguments: list[str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files may have 4 kB here, so that each export ends as on a full disk."""
    *words, name = arguments
    target = tmp_path / name
    kept, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, kept[1]))
    try:
        code = cli.run(["-w", str(folder), "export", *words, str(target)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
        signal.signal(signal.SIGXFSZ, ignored)
    assert code == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {target}")
    assert "cannot be written" in said
    assert said.count("\n") == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
