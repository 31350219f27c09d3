"""The command line: results to stdout, one clear line for what is wrong to stderr, exit codes that scripts can use."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from running_processes import cpu_seconds, wait_until
from sealed_manifest import change_manifest
from tiny_capture import tiny_capture
from typer.main import get_command
from xplane_builder import Space, Unsigned

from tracewarehouse.cli import _end, app, run
from tracewarehouse.cli.options import WarehouseOptions
from tracewarehouse.cli.verbs import EXAMPLES
from tracewarehouse.executors.executor import IngestTask, ingest_task
from tracewarehouse.ingest.capture.sources import Capture
from tracewarehouse.queries.output import FLAGGED_RUNS
from tracewarehouse.queries.result import FlaggedRun, note

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    "collect",
    "ingest",
    "watch",
    "query",
    "runs",
    "metrics",
    "report",
    "build",
    "audit",
    "fsck",
    "remove",
    "gc",
]
METRICS = ["list", "show", "values", "refresh"]
READ = {"watch", "shell", "open", "serve", "plan", "import ccl-bench"} | {
    "audit", "fsck", "chart", "export ccl-bench", "export iceberg",
}  # fmt: skip
"""Verbs that do not end, compile or need a checkout, and those that cost seconds and whose own tests call them so."""
INTERRUPTED_AT = """
import os, runpy, signal, sys
number, moments = int(sys.argv.pop(1)), [sys.argv.pop(1)]
def hook(event, arguments):
    is_dataclass = event == "exec" and arguments[0].co_filename == "<string>"  # whose methods are made of text
    if ("a dataclass" if is_dataclass else arguments[0] if event == "import" else None) in moments:
        moments.clear()
        os.kill(os.getpid(), number)
sys.addaudithook(hook)
runpy.run_module("tracewarehouse", run_name="__main__")
"""
"""`python -m tracewarehouse` that gets a signal as it imports a module, or as a module makes a dataclass."""
BEGUN = 2.0
"""CPU seconds after which a query that has no end is running, and no module is still being imported."""


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str


Tw = Callable[..., Outcome]


@pytest.fixture
def tw(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tw:
    """Runs `tw` with some arguments."""
    monkeypatch.delenv("TRACEWAREHOUSE", raising=False)

    def command(*arguments: str | Path) -> Outcome:
        capfd.readouterr()
        code = run([str(a) for a in arguments])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return command


def _commands(group: Any, before: str = "") -> dict[str, Any]:
    """By its words, each command of a group and of the groups in it."""
    found: dict[str, Any] = {}
    context = group.make_context("tw", [], resilient_parsing=True)
    for name in group.list_commands(context):
        command, words = group.get_command(context, name), f"{before} {name}".strip()
        found |= _commands(command, words) if hasattr(command, "list_commands") else {words: command}
    return found


class TestHelp:
    @pytest.mark.parametrize("command", [[], *[[c] for c in COMMANDS], *[["metrics", c] for c in METRICS]])
    def test_every_command_has_help(self, tw: Tw, command: list[str]) -> None:
        done = tw(*command, "--help")
        assert done.code == 0
        assert "Usage: tw" in done.out
        assert len(done.out.splitlines()[2].strip()) > 15

    @pytest.mark.usefixtures("asked_once_here")
    def test_every_verb_has_an_example_that_runs(
        self, tw: Tw, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a run that is here. Other tests run those of the pages; the verbs of READ are only read."""
        monkeypatch.chdir(tmp_path)
        assert folder == tmp_path / "warehouse"
        commands = _commands(get_command(app))
        assert commands.keys() == EXAMPLES.keys()
        pages = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("compare", "tpu", "tutorial"))]
        lines = {line.removeprefix("$ ") for p in pages for line in p.read_text(encoding="utf-8").splitlines()}
        for verb, example in EXAMPLES.items():
            called = shlex.split(re.sub(r"llama-tp4-\S+", "tiny-tp2", example))
            words = [w for w in called if w not in ("tw", "--sql", "mine")][len(verb.split()) :]
            commands[verb].make_context(verb, words, obj=WarehouseOptions("warehouse"))  # a wrong option raises here
            if example not in lines and verb not in READ:
                assert not verb.startswith("tpu ") or verb == "tpu plan", example  # the others ask Google
                done = tw(*called[1:])
                assert done.code == 0, (example, done.err)
            if verb == "metrics new":
                new = Path("mine/ops_per_phase_v1.sql")
                released = new.read_text().replace("experimental", "stable")
                new.write_text(re.sub("TODO[^\n]*", "Ops of a phase.", released))
        assert "Example: tw query" in tw("query", "--help").out

    def test_version(self, tw: Tw) -> None:
        assert re.fullmatch(r"tracewarehouse \d+\.\d+\.\d+\S*\n", tw("--version").out)

    @pytest.mark.parametrize("arguments", [["nosuch"], ["query"], ["query", "a", "b", "c"], ["runs", "--format", "x"]])
    def test_wrong_usage_is_exit_code_2(self, tw: Tw, arguments: list[str]) -> None:
        done = tw(*arguments)
        assert done.code == 2
        assert done.out == ""
        assert "Usage: tw" in done.err


class TestQuery:
    def test_rows_are_a_table_without_cuts_in_a_pipe(self, tw: Tw, folder: Path) -> None:
        done = tw(
            "-w", folder, "query", "SELECT kind, count(*) AS n, repeat('x', 300) AS t FROM collectives GROUP BY 1"
        )
        assert (done.code, done.err) == (0, "")
        assert done.out.splitlines()[2] == f"all-reduce  32  {'x' * 300}"

    def test_parquet_goes_into_a_pipe(self, folder: Path, tmp_path: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "tracewarehouse",
            "-w",
            str(folder),
            "query",
            "FROM runs",
            "--format",
            "parquet",
        ]
        (tmp_path / "x.parquet").write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
        assert pq.read_table(tmp_path / "x.parquet").num_rows == 1

    def test_sql_comes_from_a_file_or_stdin(
        self, tw: Tw, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "q.sql"
        file.write_text("SELECT name FROM runs;\n")
        expected = "name\ntiny-tp2\n"
        assert tw("-w", folder, "query", "-f", file, "--format", "csv").out == expected
        for arguments in (["-"], ["-f", "-"]):
            monkeypatch.setattr("sys.stdin", io.StringIO(file.read_text()))
            assert tw("-w", folder, "query", *arguments, "--format", "csv").out == expected
        assert "cannot be read as SQL" in tw("-w", folder, "query", "-f", tmp_path / "nosuch.sql").err

    def test_parameters(self, tw: Tw, folder: Path) -> None:
        sql = "SELECT $a + 1 AS a, $b AS b, $c AS c, $d AS d, $e AS e"
        options = ["-p", "a=1", "-p", "b=x=y", "-p", "c=1.5", "-p", "$d=true", "-p", "e=null"]
        done = tw("-w", folder, "query", sql, *options, "--format", "json")
        assert json.loads(done.out) == [{"a": 2, "b": "x=y", "c": 1.5, "d": True, "e": None}]
        assert tw("-w", folder, "query", sql, "-p", "a").code == 2

    def test_a_capture_instead_of_a_warehouse(self, tw: Tw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
        (tmp_path / "tmp").mkdir()
        monkeypatch.setattr("tempfile.tempdir", None)
        file = tiny_capture().write(tmp_path / "run.xplane.pb")
        assert tw("query", file, "SELECT count(*) AS n FROM collectives", "--format", "csv").out == "n\n32\n"
        values = tw("query", file, "SELECT count(*) > 0 AS n FROM metrics.all_values", "--format", "csv")
        assert values.out == "n\ntrue\n"
        assert list((tmp_path / "tmp").iterdir()) == []
        assert sorted(p.name for p in tmp_path.iterdir()) == ["run.xplane.pb", "tmp"]

    def test_a_file_without_sql_is_explained(self, tw: Tw, tmp_path: Path) -> None:
        file = tiny_capture().write(tmp_path / "run.xplane.pb")
        done = tw("query", file)
        assert done.code == 2
        assert "give the SQL after it" in " ".join(done.err.split())

    def test_a_failed_query_has_no_traceback(self, tw: Tw, folder: Path) -> None:
        done = tw("-w", folder, "query", "SELECT lin FROM ops")
        assert (done.code, done.out) == (1, "")
        assert 'Referenced column "lin" not found' in done.err
        assert '"line"' in done.err
        assert "Traceback" not in done.err

    def test_an_output_that_is_full_or_closed(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        for words in (["runs"], ["query", "FROM ops", "--format", "csv"], ["--version"]):
            with Path("/dev/full").open("w") as full, redirect_stdout(full):
                assert run(["-w", str(folder), *words]) == 1
            assert capfd.readouterr().err == "error: the output cannot be written: No space left on device\n"
        command = [sys.executable, "-m", "tracewarehouse", "-w", str(folder), "runs"]
        closed = subprocess.run(command, preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE, check=False)
        assert (closed.returncode, closed.stderr) == (0, b"")

    def test_no_library_tells_of_a_query_in_its_own_words(
        self, tw: Tw, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for query in ("PREPARE p AS PIVOT runs ON name USING count(*)", "EXPLAIN PIVOT runs ON name USING count(*)"):
            done = tw("-w", folder, "query", query)
            assert (done.code, done.err.count("\n"), caplog.messages) == (1, 1, [])

    def test_no_warehouse(self, tw: Tw, tmp_path: Path) -> None:
        done = tw("-w", tmp_path / "nowhere", "query", "FROM runs")
        assert done.code == 1
        assert done.err.startswith("error: no warehouse at ")
        assert len(done.err.splitlines()) == 1

    def test_the_warehouse_comes_from_the_environment(
        self, tw: Tw, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("TRACEWAREHOUSE", str(folder))
        assert tw("query", "SELECT 1 AS a", "--format", "csv").out == "a\n1\n"
        monkeypatch.delenv("TRACEWAREHOUSE")
        monkeypatch.chdir(tmp_path)
        assert tw("query", "SELECT 1 AS a", "--format", "csv").out == "a\n1\n"  # ./warehouse

    def test_a_process_says_nothing_of_its_own_at_the_end(self, folder: Path, tmp_path: Path) -> None:
        """As DuckDB does where its objects are left to the system, and as Python would of files not closed."""
        capture = tiny_capture().write(tmp_path / "run.xplane.pb")
        w = str(tmp_path / "other")
        commands = (["-w", str(folder), "query", "FROM runs"], ["-w", w, "ingest", str(capture), "--mesh", "tp=2"])
        for arguments in (*commands, ["-w", w, "runs"]):
            command = [sys.executable, "-X", "dev", "-m", "tracewarehouse", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            assert done.stdout
            assert done.stderr == ""

    def test_ctrl_c_ends_a_query(self, folder: Path) -> None:
        endless = "SELECT count(*) FROM range(100000000) AS a, range(1000000) AS b WHERE hash(a.range, b.range) = 1"
        command = [sys.executable, "-m", "tracewarehouse", "-w", str(folder), "query", endless]
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            wait_until(lambda: cpu_seconds(process.pid) > BEGUN)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in err

    def test_ctrl_c_ends_a_query_that_does_not_look_for_it(self, folder: Path) -> None:
        stuck = "SELECT levenshtein(repeat('a', 2000000) || i, repeat('b', 2000000)) FROM range(1) AS t(i)"
        command = [sys.executable, "-m", "tracewarehouse", "-w", str(folder), "query", stuck]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            wait_until(lambda: cpu_seconds(process.pid) > BEGUN)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (130, "interrupted\n")

    @pytest.mark.parametrize("moment", ["tracewarehouse.cli.options", "typer", "a dataclass"])
    def test_ctrl_c_while_modules_are_imported(self, moment: str) -> None:
        assert self.signalled(signal.SIGINT, moment) == (130, "", "interrupted\n")

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
    def test_it_is_ended_while_modules_are_imported(self, number: int, code: int) -> None:
        assert self.signalled(number, "typer") == (code, "", "")

    def signalled(self, number: int, moment: str) -> tuple[int, str, str]:
        command = [sys.executable, "-c", INTERRUPTED_AT, str(int(number)), moment, "--version"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    @pytest.mark.parametrize("where", ["a command", "an ingest", "click"])
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_signal_while_views_are_made(
        self, number: int, code: int, where: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """There DuckDB runs in the main thread, and raises an error of its own in place of the signal's."""

        def make_views(*_: object, **__: object) -> None:
            threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
            with duckdb.connect() as connection:
                connection.execute("CREATE OR REPLACE VIEW v AS SELECT 1;" * 50_000)

        def command(*_: object, **__: object) -> None:
            if where == "click":
                os.kill(os.getpid(), number)
            if where == "an ingest":
                monkeypatch.setattr("tracewarehouse.executors.executor.prepared_evaluator", make_views)
                outcome = ingest_task(IngestTask(0, Capture("none", ()), Path("none")))
                raise AssertionError(f"goes on after {outcome.error}")
            make_views()

        monkeypatch.setattr("tracewarehouse.cli._code", 130)
        monkeypatch.setattr("tracewarehouse.cli.get_command", lambda _: command)
        before = signal.signal(number, _end)
        try:
            assert run(["query"]) == code
        finally:
            signal.signal(number, before)
        assert capfd.readouterr().err == "interrupted\n" * (code == 130)

    def test_a_query_beyond_its_memory_limit_is_told_the_limit(
        self, tw: Tw, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TRACEWAREHOUSE_MEMORY_LIMIT", "90MB")
        large = "SELECT list(i) FROM range(100000000) AS t(i)"
        done = tw("-w", folder, "query", large)
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
        assert "its memory limit of 85.8 MiB; ask for less at once, or raise the limit with `tw --memory-" in done.err
        told = tw("-w", folder, "--memory-limit", "1GB", "query", "SELECT current_setting('memory_limit')")
        assert "953.6 MiB" in told.out
        wrong = tw("-w", folder, "--memory-limit", "much", "query", "SELECT 1")
        assert (wrong.code, wrong.err.count("\n")) == (1, 1)
        assert "expected a size such as 8GB or 50%" in wrong.err

    def test_a_query_has_a_memory_limit_by_default(self, tw: Tw, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TRACEWAREHOUSE_MEMORY_LIMIT", raising=False)
        told = tw("-w", folder, "query", "SELECT current_setting('memory_limit') AS m", "--format", "csv")
        size, unit = told.out.split("\n")[1].split()
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert float(size) * {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit] <= 0.8 * machine


class TestIngest:
    def test_bad_inputs_do_not_stop_the_others(self, tw: Tw, capture: Path, tmp_path: Path) -> None:
        (tmp_path / "empty.xplane.pb").touch()
        (tmp_path / "junk.xplane.pb").write_bytes(b"junk" * 100)
        truncated = tmp_path / "cut.xplane.pb"
        truncated.write_bytes(tiny_capture().to_bytes()[:-100])
        (tmp_path / "text.txt").write_text("hello")
        (tmp_path / "nothing").mkdir()
        bad = [
            tmp_path / n
            for n in ("empty.xplane.pb", "junk.xplane.pb", "cut.xplane.pb", "text.txt", "nothing", "nowhere.pb")
        ]
        done = tw("-w", tmp_path / "w", "ingest", *bad[:3], capture, *bad[3:])
        assert done.code == 1
        assert [line.split("\t")[1:3] for line in done.out.splitlines()] == [["tiny-tp2", "ingested"]]
        *errors, last = done.err.splitlines()
        assert len(errors) == len(bad)
        for path in bad:
            assert [e for e in errors if e.startswith("error: ") and path.name in e], path
        assert last == "6 of 7 were not ingested, for the reasons above"
        again = tw("-w", tmp_path / "w", "ingest", capture)
        assert again.code == 0
        assert again.out.split("\t")[2] == "unchanged"
        assert len(list((tmp_path / "w" / "lake").iterdir())) == 1

    def test_a_name_that_is_not_utf8_costs_one_error(self, tw: Tw, tmp_path: Path) -> None:
        folder = tmp_path / "captures"
        for name, period in (("good", 150), (os.fsdecode(b"bad\xff"), 200)):
            (folder / name).mkdir(parents=True)
            tiny_capture(period).write(folder / name / f"{name}.xplane.pb")
        done = tw("-w", tmp_path / "w", "ingest", folder)
        assert (done.code, done.out.split("\t")[1:3], done.out.count("\n")) == (1, ["good", "ingested"], 1)
        [error] = [line for line in done.err.splitlines() if line.startswith("error: ")]
        assert r"bad\udcff' is not UTF-8; rename it" in error

    def test_what_is_no_manifest_or_card_costs_one_error(self, tw: Tw, tmp_path: Path, capture: Path) -> None:
        captures = tmp_path / "captures"
        bad = []
        for name in ("manifest.json", "card.yaml"):
            for kind in ("link to itself", "pipe", "folder", "list"):
                of = Path(shutil.copytree(capture, captures / f"{name}, {kind}"))
                (of / name).unlink(missing_ok=True)
                if kind == "link to itself":
                    (of / name).symlink_to(name)
                elif kind == "pipe":
                    os.mkfifo(of / name)
                elif kind == "folder":
                    (of / name).mkdir()
                else:
                    (of / name).write_text('[{"name": 5}]')
                bad.append(of / name)
        tiny_capture(200).write(captures / "good.xplane.pb")
        done = tw("-w", tmp_path / "w", "ingest", captures)
        assert (done.code, done.out.split("\t")[1:3], done.out.count("\n")) == (1, ["good", "ingested"], 1)
        errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == len(bad)
        for path in bad:
            assert [e for e in errors if e.startswith(f"error: {path}: ")], path

    @pytest.mark.parametrize(
        ("mesh", "reason"),
        [
            ("tp=0", "a mesh axis has a size below 1"),
            ("dp=99999999999", "a mesh has at most 131072 devices"),
            ("xx=4", "unknown mesh axis xx; known are "),
            ("=4", "unknown mesh axis ; known are "),
            ("tp=-1", "expected axis=size pairs such as dp=2,tp=4, found 'tp=-1'"),
            ("tp=²", "expected axis=size pairs such as dp=2,tp=4, found 'tp=²'"),
            ("tp=2,tp=2", "axis tp is given twice"),
        ],
    )
    def test_what_is_no_mesh_is_said_once_in_our_words(self, tw: Tw, tmp_path: Path, mesh: str, reason: str) -> None:
        done = tw("-w", tmp_path / "w", "ingest", "--mesh", mesh, tmp_path / "c")
        assert done.code == 2
        assert f"Error: Invalid value for '--mesh': mesh '{mesh}': {reason}" in done.err
        assert "pydantic" not in done.err

    def test_pipes_and_sockets_named_as_captures_cost_one_error_each(
        self, tw: Tw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "c"
        tiny_capture().write(folder / "good.xplane.pb")
        for name in ("a.trace.json.gz", "b.trace.json", "b.xplane.pb"):
            os.mkfifo(folder / name)
        monkeypatch.chdir(folder)  # a socket's path is short
        with closing(socket.socket(socket.AF_UNIX)) as bound:
            bound.bind("c.xplane.pb")
            done = tw("-w", tmp_path / "w", "ingest", folder)
        assert (done.code, done.out.split("\t")[1:3], done.out.count("\n")) == (1, ["good", "ingested"], 1)
        found = "is a pipe or device, expected a capture file; copy it to a file first"
        assert sorted(line for line in done.err.splitlines() if line.startswith("error: ")) == [
            f"error: {folder}/a.trace.json.gz: {found}",
            f"error: {folder}/b.xplane.pb: {found}",
            f"error: {folder}/c.xplane.pb: is a socket, expected a capture file",
        ]
        assert "3 of 4 were not ingested" in done.err

    def test_folders_that_cannot_be_listed_are_named(
        self, tw: Tw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tiny_capture().write(tmp_path / "c" / "good.xplane.pb")
        tiny_capture(200).write(tmp_path / "c" / "closed" / "other.xplane.pb")
        entries = Path.iterdir

        def listed(folder: Path) -> Iterator[Path]:
            if folder.name == "closed":
                raise PermissionError(errno.EACCES, "Permission denied", str(folder))
            return entries(folder)

        monkeypatch.setattr(Path, "iterdir", listed)
        done = tw("-w", tmp_path / "w", "ingest", tmp_path / "c")
        assert (done.code, done.out.count("\n")) == (0, 1)
        assert f"left out {tmp_path}/c/closed (cannot be read: Permission denied)" in done.err
        done = tw("-w", tmp_path / "w", "ingest", tmp_path / "c" / "closed")
        assert (done.code, done.err) == (1, f"error: {tmp_path}/c/closed: cannot be read: Permission denied\n")

    @pytest.mark.parametrize("name", ["a\nb", "a\0b", "a*b", "a?b", "a[x]b", "a\\b", os.fsdecode(b"a\xff")])
    def test_a_path_that_duckdb_would_take_for_a_pattern_is_refused(
        self, tw: Tw, tmp_path: Path, capture: Path, name: str
    ) -> None:
        (tmp_path / "axb" / "w").mkdir(parents=True)
        for command in (["ingest", capture], ["query", "FROM ops"], ["build"]):
            done = tw("-w", tmp_path / name / "w", *command)
            assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
            assert "a warehouse's path" in done.err
        assert not (tmp_path / name).exists()

    def test_nothing_to_ingest_makes_no_warehouse(self, tw: Tw, tmp_path: Path) -> None:
        assert tw("-w", tmp_path / "w", "ingest", tmp_path / "nowhere.pb").code == 1
        assert not (tmp_path / "w").exists()

    def test_name_and_mesh(self, tw: Tw, tmp_path: Path) -> None:
        file = tiny_capture().write(tmp_path / "a.xplane.pb")
        other = tmp_path / "b.xplane.pb"
        space = Space()
        space.host().line("python").event("f", 1, 2)
        space.write(other)
        done = tw("-w", tmp_path / "w", "ingest", file, "--name", "mine", "--mesh", "tp=2")
        _, name, status, events = done.out.strip().split("\t")
        assert (name, status) == ("mine", "ingested")
        assert re.fullmatch(r"\d+ events", events)
        assert tw("-w", tmp_path / "w", "query", "SELECT mesh FROM runs", "--format", "csv").out == "mesh\ntp=2\n"
        assert tw("-w", tmp_path / "w", "ingest", file, "--mesh", "nonsense").code == 2
        assert tw("-w", tmp_path / "w", "ingest", file, other, "--name", "x").code == 2

    def test_costs(self, tw: Tw, capture: Path, tmp_path: Path) -> None:
        (tmp_path / "c.json").write_text('{"nothing": {"flops": 1}}')
        assert tw("-w", tmp_path / "w", "ingest", capture, "--costs", tmp_path / "c.json").code == 0
        notes = tw("-w", tmp_path / "w", "runs", "--notes").err
        assert "flag given_costs: c.json gives the costs of no kernel of the run; nothing matches none" in notes
        (tmp_path / "c.json").write_text('{"nothing": {"flop": 1}}')
        wrong = tw("-w", tmp_path / "none", "ingest", capture, "--costs", tmp_path / "c.json")
        assert wrong.code == 2
        assert "nothing.flop" in wrong.err
        assert not (tmp_path / "none").exists()

    def test_a_warehouse_that_cannot_be_written(self, tw: Tw, capture: Path, tmp_path: Path) -> None:
        (tmp_path / "w").write_text("a file")
        done = tw("-w", tmp_path / "w", "ingest", capture)
        assert done.code == 1
        assert "is a file" in done.err


class TestRuns:
    def test_runs_with_their_quality(self, tw: Tw, folder: Path, tmp_path: Path) -> None:
        space = Space(warnings=["3 events dropped"])
        space.host().line("python").event("f", 1, 2)
        assert tw("-w", folder, "ingest", space.write(tmp_path / "poor.xplane.pb")).code == 0
        rows = json.loads(tw("-w", folder, "runs", "--format", "json").out)
        assert [(r["name"], r["backend"], r["devices"]) for r in rows] == [
            ("poor", "unknown", 0),
            ("tiny-tp2", "tpu", 2),
        ]
        assert rows[0]["quality"] == "events_dropped, no_device_events, profiler_warning"
        assert rows[1]["quality"] == "ok"
        notes = tw("-w", folder, "runs", "--notes").err
        assert "poor: flag profiler_warning: host0: 3 events dropped" in notes

    def test_an_inferred_mesh_is_shown_to_people_as_such(self, tw: Tw, capture: Path, tmp_path: Path) -> None:
        [xplane] = capture.rglob("*.xplane.pb")
        anonymous = tmp_path / "anonymous.xplane.pb"
        anonymous.write_bytes(xplane.read_bytes())
        assert tw("-w", tmp_path / "w", "ingest", anonymous).code == 0
        [run] = json.loads(tw("-w", tmp_path / "w", "runs", "--format", "json").out)
        assert (run["mesh"], run["inferred_mesh"]) == (None, "tp=2")
        assert "tp=2 (inferred)" in tw("-w", tmp_path / "w", "runs").out
        assert "tp=2 (inferred)" in tw("-w", tmp_path / "w").out

    def test_every_answer_names_the_flagged_runs_behind_it(self, tw: Tw, folder: Path, tmp_path: Path) -> None:
        space = Space(warnings=["3 events dropped"])
        space.host().line("python").event("f", 1, 2)
        assert tw("-w", folder, "ingest", space.write(tmp_path / "poor.xplane.pb")).code == 0
        poor = "flagged: poor (events_dropped, no_device_events, profiler_warning)"

        def says(*arguments: object) -> bool:
            return poor in tw("-w", folder, *arguments).err

        [tiny] = json.loads(tw("-w", folder, "query", "SELECT run_id FROM ops LIMIT 1", "--format", "json").out)
        assert says("query", "SELECT count(*) FROM ops")
        assert says("query", "SELECT count(*) FROM metrics.tpot")
        assert says("query", "WITH x AS (SELECT * FROM main.host_events) SELECT count(*) FROM x")
        assert says("query", "SELECT DISTINCT run_id FROM host_events")
        assert not says("query", "SELECT DISTINCT run_id FROM ops")  # poor has no rows there
        assert not says("query", "SELECT count(*) FROM runs WHERE name = 'tiny-tp2'")
        assert not says("query", "SELECT count(*) FROM runs WHERE name = $n", "-p", "n=tiny-tp2")
        assert not says("query", f"SELECT count(*) FROM ops WHERE run_id = '{tiny['run_id']}'")
        assert not says("query", "SELECT 1")
        assert not says("query", "SELECT count(*) FROM metrics.catalog")
        assert says("compare", "poor", "tiny-tp2", "--force")
        assert says("check", "poor", "--against", "tiny-tp2", "--force")
        assert not says("metrics", "values")  # poor has none
        # A file that is handed on says it too.
        for name, sql in (("runs", "SELECT run_id FROM runs"), ("ops", "SELECT DISTINCT run_id FROM ops")):
            assert tw("-w", folder, "query", sql, "-o", tmp_path / f"{name}.parquet").code == 0
            kept = (pq.read_schema(tmp_path / f"{name}.parquet").metadata or {}).get(FLAGGED_RUNS, b"[]")
            flags = ["events_dropped", "no_device_events", "profiler_warning"]
            assert [(run["name"], run["flags"]) for run in json.loads(kept)] == [("poor", flags)] * (name == "runs")

    def test_an_answer_from_predicted_runs_says_so_first(self) -> None:
        runs = [FlaggedRun("r1", "a", ("predicted",)), FlaggedRun("r2", "b", ("inferred_axes", "predicted"))]
        told = "read with care, flagged: a (predicted), b (inferred_axes, predicted); `tw runs --notes` says why"
        assert note(runs) == f"2 runs are predicted, not measured; {told}"
        assert str(note(runs[:1])).startswith("1 run is predicted, not measured; read with care, flagged: a ")

    def test_values_say_where_they_come_from(self, tw: Tw, folder: Path) -> None:
        head, *rows = tw("-w", folder, "metrics", "values", "-m", "tpot", "--csv").out.splitlines()
        assert head.endswith(",origin")
        assert rows
        assert all(row.endswith(",recorded") for row in rows)

    def test_an_empty_warehouse_says_so(self, tw: Tw, tmp_path: Path) -> None:
        (tmp_path / "w").mkdir()
        done = tw("-w", tmp_path / "w", "runs")
        assert done.code == 0
        assert "is empty; add runs" in done.err


class TestMetrics:
    def test_list_and_show_need_no_warehouse(self, tw: Tw, tmp_path: Path) -> None:
        listed = json.loads(tw("-w", tmp_path / "nowhere", "metrics", "list", "--format", "json").out)
        assert {"ttft", "tpot"} <= {m["metric"] for m in listed}
        for metric in listed:
            shown = tw("metrics", "show", metric["metric"], "--version", str(metric["version"]))
            assert shown.code == 0
            assert f"metrics.{metric['metric']}_v{metric['version']}" in shown.out
            assert "SELECT" in shown.out
        assert not (tmp_path / "nowhere").exists()
        assert "did you mean tpot" in tw("metrics", "show", "tpott").err

    def test_values_are_stored_where_there_are_some_and_not_of_instructions(self, tw: Tw, tmp_path: Path) -> None:
        space = Space()
        tpu = space.tpu(0)
        for name, facts in (("fusion.1", {"flops": 100}), ("fusion.2", {"bytes_accessed": 50})):
            hlo = f"%{name} = bf16[8]{{0}} fusion(bf16[8]{{0}} %a), kind=kLoop"
            op = tpu.instruction(hlo, hlo_category="loop fusion", program_id=Unsigned(1), **facts)
            tpu.ops.event(op, 0 if "1" in name else 1_000_000, 1_000_000)
        tw("-w", tmp_path / "w", "ingest", space.write(tmp_path / "vm.xplane.pb"))

        def asked(sql: str) -> str:
            return tw("-w", tmp_path / "w", "query", sql, "--format", "csv").out

        assert asked("SELECT count(*) > 0 AS has FROM metric_values") == "has\ntrue\n"
        assert asked("SELECT metric FROM metric_values WHERE value IS NULL OR metric = 'roofline'") == "metric\n"
        # one of its two rows has a rate; the other instruction states none
        assert (
            asked("SELECT count(*) AS rows, count(flops_per_s) AS rates FROM metrics.roofline") == "rows,rates\n2,1\n"
        )
        told = tw("-w", tmp_path / "w", "metrics", "values", "-m", "roofline", "--format", "json")
        assert [r["value"] for r in json.loads(told.out)] == [100e6]

    def test_values_of_older_definitions_are_told_and_refreshed(self, tw: Tw, folder: Path) -> None:
        change_manifest(folder, metrics_fingerprint="older")
        assert "run `tw metrics refresh`" in tw("-w", folder, "metrics", "values").err
        refreshed = tw("-w", folder, "metrics", "refresh")
        assert refreshed.out.split("\t")[1:3] == ["tiny-tp2", "refreshed"]
        assert "refresh" not in tw("-w", folder, "metrics", "values").err
        assert tw("-w", folder, "metrics", "refresh").out == ""


class TestOthers:
    @pytest.mark.usefixtures("asked_once_here")
    def test_report(self, tw: Tw, folder: Path, tmp_path: Path) -> None:
        done = tw("-w", folder, "report", "tiny-tp2", "--chart", "steps", "-o", tmp_path / "r.html")
        assert (done.code, done.out) == (0, f"{tmp_path}/r.html\n")
        assert (tmp_path / "r.html").read_text().startswith("<!")
        assert tw("-w", folder, "report", "nosuch", "-o", tmp_path / "x.html").code == 1
        (tmp_path / "empty").mkdir()
        assert "is empty; add runs" in tw("-w", tmp_path / "empty", "report").err

    @pytest.mark.usefixtures("asked_once_here")
    def test_report_in_other_formats(self, tw: Tw, folder: Path, tmp_path: Path) -> None:
        asked = ("-w", folder, "report", "tiny-tp2", "--chart", "timeline", "--chart", "steps")
        assert tw(*asked, "--format", "md", "-o", "-").out.startswith("# tiny-tp2\n")
        assert tw(*asked, "-f", "json", "-o", tmp_path / "r.json").code == 0
        assert json.loads((tmp_path / "r.json").read_text())["title"] == "tiny-tp2"
        drawn = tw(*asked, "-f", "svg", "-o", tmp_path / "charts")
        assert drawn.out.split() == [f"{tmp_path}/charts/{name}.svg" for name in ("timeline", "steps")]
        assert sorted(p.name for p in (tmp_path / "charts").iterdir()) == ["steps.svg", "timeline.svg"]

    @pytest.mark.usefixtures("asked_once_here")
    def test_a_report_is_what_the_ending_of_its_file_says(self, tw: Tw, folder: Path, tmp_path: Path) -> None:
        asked = ("-w", folder, "report", "tiny-tp2", "--chart", "steps")
        assert tw(*asked, "-o", tmp_path / "r.md").code == 0
        assert (tmp_path / "r.md").read_text().startswith("# tiny-tp2\n")
        assert tw(*asked, "-o", tmp_path / "r.svg").code == 0
        assert "<svg" in (tmp_path / "r.svg").read_text()
        two = tw(*asked, "--chart", "timeline", "-o", tmp_path / "r.png")
        assert (two.code, "holds one chart" in two.err) == (1, True)
        pdf = tw(*asked, "-o", tmp_path / "r.pdf")
        assert (pdf.code, "print the page" in pdf.err) == (2, True)
        other = tw(*asked, "-o", tmp_path / "r.html", "-f", "md")
        assert (other.code, "exclude each other" in " ".join(other.err.split())) == (2, True)
        assert tw(*asked, "-o", tmp_path / "r.pdf", "-f", "png").code == 2  # no folder of that name
        assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("r.")) == ["r.md", "r.svg"]

    @pytest.fixture
    def here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """An empty current folder."""
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        return tmp_path / "here"

    @pytest.mark.usefixtures("asked_once_here")
    def test_a_chart_by_its_name(self, tw: Tw, folder: Path, here: Path) -> None:
        help_ = " ".join(tw("chart", "--help").out.split())
        example = re.search(r"Example: tw (chart \S+) \S+ -o (\S+)", help_)
        assert example is not None
        done = tw("-w", folder, *example[1].split(), "tiny-tp2", "-o", example[2])
        assert (done.code, done.out) == (0, f"{example[2]}\n")
        assert (here / example[2]).read_bytes().startswith(b"%PDF")
        assert tw("-w", folder, "chart", "steps", "tiny-tp2").out == "steps.svg\n"
        pair = ("-w", folder, "chart", "differences", "tiny-tp2", "--against", "tiny-tp2")
        assert tw(*pair, "--by", "layer", "-o", "d.json").out == "d.json\n"
        assert json.loads((here / "d.json").read_text())["name"] == "differences-layer"
        assert sorted(p.name for p in here.iterdir()) == ["d.json", "steps.svg", example[2]]

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (["trafic", "tiny-tp2"], 1, "did you mean traffic?"),
            (["steps", "nosuch"], 1, "nosuch"),
            (["steps", "tiny-tp2", "-o", "x.gif"], 1, "can be saved as .html, .png"),
            (["steps", "tiny-tp2", "--against", "tiny-tp2"], 2, "steps compares no runs"),
            (["steps", "tiny-tp2", "--by", "layer"], 2, "steps is a chart of one run"),
            (["differences", "tiny-tp2"], 2, "name the runs to compare with by --against"),
            (["differences", "--against", "tiny-tp2"], 1, "name the runs that differences compares"),
            (["differences", "tiny-tp2", "--against", "tiny-tp2", "--by", "axis"], 1, "split by part, layer"),
        ],
    )
    def test_a_chart_that_cannot_be_drawn_says_why(
        self, tw: Tw, folder: Path, here: Path, arguments: list[str], code: int,
        words: str,
    ) -> None:  # fmt: skip
        done = tw("-w", folder, "chart", *arguments)
        assert (done.code, done.out) == (code, "")
        assert words in " ".join(done.err.split())
        assert not [*here.iterdir()]

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["query", "SELECT 1 AS a", "--json", "-o", "x.csv"], "exclude each other"),
            (["runs", "--format", "parquet", "-o", "x.json"], "exclude each other"),
            (["query", "SELECT 1 AS a", "--csv", "-o", "x.txt"], "exclude each other"),
            (["baseline", "tiny-tp2", "-o", "x.csv"], "a baseline is NDJSON"),
            (["export", "rows", "runs", "--csv", "-o", "x.txt"], "exclude each other"),
            (["export", "chakra", "tiny-tp2", "-o", "x.json"], "would become a folder"),
            (["export", "iceberg", "-o", "x.pdf"], "would become a folder"),
            (["export", "ccl-bench", "tiny-tp2", "--out", "x.zip"], "would become a folder"),
            (["export", "chrome", "tiny-tp2", "tiny-tp2", "-o", "x.html"], "would become a folder"),
            (["metrics", "docs", "-o", "x.md"], "would become a folder"),
            (["sample", "-o", "x.gz"], "would become a folder"),
            (["collect", "tiny", "-o", "x.pb"], "would become a folder"),
        ],
    )
    def test_no_verb_writes_what_the_ending_of_its_output_does_not_say(
        self, tw: Tw, folder: Path, here: Path, arguments: list[str], words: str
    ) -> None:
        done = tw("-w", folder, *arguments)
        assert (done.code, words in " ".join(done.err.replace("│", " ").split())) == (2, True), done.err
        assert not [*here.iterdir()]

    def test_rows_are_not_written_under_an_ending_that_is_no_format(self, tw: Tw, folder: Path, here: Path) -> None:
        for verb in (
            ["query", "SELECT 1 AS a"],
            ["runs"],
            ["metrics", "list"],
            ["metrics", "values", "tiny-tp2"],
            ["export", "rows", "runs"],
        ):
            for ending in (".html", ".pdf", ".png", ".md", ".csv.gz", ".xls"):
                done = tw("-w", folder, *verb, "-o", f"x{ending}")
                assert (done.code, done.out, "no format for the ending" in done.err) == (1, "", True)
        assert not [*here.iterdir()]

    def test_a_dash_is_standard_output(self, tw: Tw, folder: Path, here: Path) -> None:
        assert tw("-w", folder, "query", "SELECT 1 AS a", "--csv", "-o", "-").out == "a\n1\n"
        assert not [*here.iterdir()]

    def test_collect_checks_what_it_is_asked(self, tw: Tw, tmp_path: Path) -> None:
        assert "is not known" in tw("collect", "--model", "nosuch", "-o", tmp_path).err
        assert "pairs such as" in tw("collect", "--mesh", "nonsense", "-o", tmp_path).err
        assert "no such experiment file" in tw("collect", tmp_path / "nosuch.yaml").err
        both = tw("collect", tmp_path / "x.yaml", "--model", "llama")
        assert both.code == 2
        assert "exclude each other" in " ".join(both.err.split())

    def test_collect_says_what_it_would_record(self, tw: Tw, tmp_path: Path) -> None:
        done = tw("collect", "--model", "llama", "--mesh", "dp=2,tp=2", "--dry-run", "-o", tmp_path / "captures")
        assert done.code == 0
        name, devices, files, state = done.out.strip().split("\t")
        assert name.startswith("llama-dp2tp2")
        assert (devices, files, state) == ("4 devices", "1 file", "to record")
        assert not (tmp_path / "captures").exists()


def test_a_query_longer_than_a_file_name_may_be(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-w", str(folder), "query", f"SELECT 1 AS one -- {'x' * 5000}", "--format", "csv"]) == 0
    assert capsys.readouterr().out.split() == ["one", "1"]


def test_a_metric_that_compares_runs_is_among_the_values(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-w", str(folder), "metrics", "values", "-m", "scaling_efficiency", "--format", "json"]) == 0
    [value] = json.loads(capsys.readouterr().out)
    assert value["value"] == 1
    assert json.loads(value["dimensions"]) == {"baseline_run_id": value["run_id"]}
