"""What people meet first: options in any place, short forms, `tw` alone, 80 columns, completion, the shell."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tracewarehouse
from tracewarehouse.cli import run
from tracewarehouse.ingest.capture.locations import NAME

TW = Path(sys.executable).parent / "tw"
Asked = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tw(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    """Exit code, output and errors of `tw`, in an empty folder."""
    monkeypatch.delenv("TRACEWAREHOUSE", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def command(*arguments: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        return run([str(a) for a in arguments]), *capfd.readouterr()

    return command


def test_options_stand_before_or_after_the_verb(tw: Asked, folder: Path) -> None:
    before = tw("-w", folder, "runs", "--format", "json")
    assert before[0] == 0
    assert json.loads(before[1])[0]["name"] == "tiny-tp2"
    assert tw("runs", "-w", folder, "--json") == before
    assert tw("-w", "nowhere", "runs", f"--warehouse={folder}", "--json") == before
    values = ("metrics", "values", "-m", "tpot", "--csv")
    assert tw(*values, "-w", folder) == tw("-w", folder, *values)
    assert tw("query", "SELECT name FROM runs", "-w", folder, "--csv")[1] == "name\ntiny-tp2\n"


def test_short_forms_of_formats(tw: Asked, folder: Path, tmp_path: Path) -> None:
    ask = ("query", "SELECT 1 AS a", "-w", folder)
    assert tw(*ask, "--json")[1] == '[{"a": 1}]\n'
    assert tw(*ask, "--csv")[1] == "a\n1\n"
    for both in (("--json", "--csv"), ("--json", "--format", "csv")):
        code, _, err = tw(*ask, *both)
        assert code == 2
        assert "exclude each other" in " ".join(err.split())
    assert tw("metrics", "values", "-w", folder, "-m", "tpot", "-o", tmp_path / "x.json")[0] == 0
    assert {r["metric"] for r in json.loads((tmp_path / "x.json").read_text())} == {"tpot"}


def test_values_are_those_of_whole_runs_unless_more_is_asked_for(tw: Asked, folder: Path) -> None:
    def metrics(*arguments: str) -> set[str]:
        return {r["metric"] for r in json.loads(tw("metrics", "values", *arguments, "-w", folder, "--json")[1])}

    assert "tpot" in metrics()
    assert "step_time" not in metrics()
    assert "left out" in tw("metrics", "values", "-w", folder)[2]
    assert metrics("--all") > metrics() | {"step_time"}
    assert metrics("-m", "step_time,tpot") == {"step_time", "tpot"}
    assert metrics("tiny-*", "-m", "tpot") == {"tpot"}
    assert metrics("t?ny*", "tiny-tp2", "-m", "tpot") == {"tpot"}


def test_what_is_unknown_is_told_from_what_is_close(tw: Asked, folder: Path) -> None:
    assert "did you mean tpot?" in tw("metrics", "values", "-m", "tpto", "-w", folder)[2]
    assert "did you mean tpot?" in tw("compare", "tiny-tp2", "tiny-tp2", "-m", "tpto", "-w", folder)[2]
    assert "`tw metrics list` shows all" in tw("metrics", "show", "qqqqqq")[2]
    assert "did you mean tiny-tp2?" in tw("metrics", "values", "tiny-tp3", "-w", folder)[2]
    code, _, err = tw("metrics", "values", "qqqqqq*", "-w", folder)
    assert code == 1
    assert "`tw runs` lists its runs" in err


def test_tw_alone_says_what_is_there_and_what_to_do(tw: Asked, folder: Path, tmp_path: Path) -> None:
    code, out, err = tw()
    assert (code, err) == (0, "")
    assert "no warehouse at warehouse" in out
    assert "tw sample" in out
    code, out, err = tw("-w", folder)
    assert (code, err) == (0, "")
    assert out.startswith(f"1 run in {folder}\n")
    assert "tiny-tp2" in out
    assert "tw show tiny-tp2" in out
    (folder / "warehouse.duckdb").write_bytes(b"no database")
    assert "warehouse.duckdb is older than the runs; run `tw build`" in tw("-w", folder)[2]
    (tmp_path / "empty").mkdir()
    assert tw("-w", tmp_path / "empty")[1].startswith("0 runs")
    (tmp_path / "file").write_text("x")
    assert tw("-w", tmp_path / "file")[0] == 1


def test_a_sample_comes_with_the_package(tw: Asked) -> None:
    assert tw("sample")[:2] == (0, f"captures/{NAME}\n")
    assert tw("query", "captures", "SELECT name FROM runs", "--csv")[1] == f"name\n{NAME}\n"
    assert (tracewarehouse.sample() / "manifest.json").is_file()


def test_a_reader_that_has_seen_enough_is_no_failure(folder: Path) -> None:
    for command in ("query 'FROM ops, range(1000)' --csv", "metrics show tpot", "metrics list"):
        script = f"set -o pipefail; '{TW}' -w '{folder}' {command} | head -1"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr.replace("\n", "")[:5]) in ((0, ""), (0, "note:")), command


def in_terminal(*arguments: str | Path, columns: int = 80, lines: int = 30) -> str:
    """What a terminal of this size shows; the pager prints and marks what goes through it."""
    ours, theirs = pty.openpty()
    size = {"COLUMNS": str(columns), "LINES": str(lines), "PAGER": "sed 's/^/paged: /'", "TERM": "xterm"}
    with subprocess.Popen(
        [TW, *map(str, arguments)], stdout=theirs, stderr=theirs, stdin=theirs, env=os.environ | size
    ):
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the program has ended
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    return shown.decode()


@pytest.mark.parametrize("shown", ["status() as show: show('busy')", "copying() as show: show('busy', 1, 2)"])
def test_results_go_to_their_file_while_a_terminal_shows_what_is_done(shown: str) -> None:
    ours, theirs = pty.openpty()
    script = f"from tracewarehouse.cli.output import copying, status\nwith {shown}; print('result')"
    environment = os.environ | {"TERM": "xterm"}
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=theirs, env=environment, timeout=120, check=True
    )
    os.close(theirs)
    told = os.read(ours, 65536)
    os.close(ours)
    assert done.stdout == b"result\n"
    assert b"busy" in told
    assert b"result" not in told


def test_on_a_terminal_what_is_long_is_paged_and_nothing_is_wider(folder: Path) -> None:
    values = in_terminal("metrics", "values", "-w", folder)
    assert values.count("paged: ") > 30
    assert max(len(line.rstrip("\r").removeprefix("paged: ")) for line in values.split("\n")) <= 80
    runs = in_terminal("runs", "-w", folder)
    assert "paged: " not in runs
    assert "tiny-tp2" in runs
    assert "paged: " not in in_terminal("metrics", "values", "-w", folder, lines=10_000)


def completed(folder: Path, typed: str) -> list[str]:
    """What the Tab key offers behind a line of bash."""
    environment = os.environ | {
        "_TW_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split(" ")) - 1),
        "TRACEWAREHOUSE": str(folder),
    }
    return subprocess.run([TW], env=environment, capture_output=True, text=True, timeout=60, check=False).stdout.split()


def test_completion_of_verbs_runs_and_metrics(folder: Path, tw: Asked) -> None:
    assert "--install-completion" in tw("--help")[1]
    assert completed(folder, "tw que") == ["query"]
    assert completed(folder, "tw metrics values ti") == ["tiny-tp2"]
    assert completed(folder, "tw metrics show tp") == ["tpot"]
    assert completed(folder, "tw metrics values -m tpot,ttf") == ["tpot,ttft"]
    assert completed(folder / "nowhere", "tw metrics values ti") == []


def test_the_shell_is_duckdb_on_the_runs_of_now(folder: Path, capture: Path) -> None:
    if not (TW.parent / "duckdb").is_file():
        pytest.skip("the duckdb command line is not installed; it is in the development dependencies")
    sql = ".mode csv\nSELECT name FROM runs;\nCREATE TABLE x (a INT);\n"
    done = subprocess.run([TW, "shell", "-w", folder], input=sql, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["name", "tiny-tp2"]
    assert "read-only" in done.stderr
