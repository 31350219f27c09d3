"""The server keeps to its bounds: it says what it leaves out, what is wrong with a question, and only reads."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from all_reduce_steps import rows, step_capture

from tracewarehouse.cli import run
from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.mcp_server.answer import MAX_CELL
from tracewarehouse.mcp_server.description import skill
from tracewarehouse.mcp_server.tools import TOOLS
from tracewarehouse.warehouse import open_warehouse

Ask = Callable[..., Any]


def test_the_tools_say_what_they_are(client: tuple[Any, Any]) -> None:
    connected, portal = client
    offered = {t.name: t for t in portal.call(connected.list_tools).tools}
    assert list(offered) == list(TOOLS)
    assert {"list_runs", "describe", "metric_values", "compare", "query", "timeline", "flags"} <= {*offered}
    for tool in offered.values():
        assert tool.description and tool.annotations.read_only_hint
        assert all(a.get("description") for a in tool.input_schema["properties"].values()), tool.name
    assert offered["query"].input_schema["required"] == ["sql"]


def test_the_skill_is_a_resource(client: tuple[Any, Any]) -> None:
    connected, portal = client
    [resource] = portal.call(connected.list_resources).resources
    [content] = portal.call(connected.read_resource, str(resource.uri)).contents
    assert content.text == skill()


def test_rows_beyond_the_cap_are_left_out_and_can_be_had(ask: Ask) -> None:
    answer = ask("query", sql="SELECT range AS i FROM range(500) ORDER BY i", max_rows=3)
    assert answer["tables"][0]["rows"] == [[0], [1], [2]]
    [sentence] = answer["left_out"]
    assert "more than these 3" in sentence
    assert "OFFSET" in sentence
    first = ask("list_runs", max_rows=2)
    assert first["left_out"] == ["runs: rows 1 to 2 of 3; offset=2 continues"]
    second = ask("list_runs", max_rows=2, offset=2)
    assert second["left_out"] == ["runs: rows 3 to 3 of 3"]
    assert len(rows(first, "runs")) + len(rows(second, "runs")) == 3


def test_an_answer_is_short_enough_to_read(ask: Ask) -> None:
    answer = ask("query", sql="SELECT repeat('x', 1000) AS text FROM range(900)", max_rows=1000)
    assert 10 < len(answer["tables"][0]["rows"]) < 30
    assert "of these 900 rows, as an answer has at most 30000 characters" in answer["left_out"][0]
    [[text]] = ask("query", sql="SELECT repeat('é', 5000) AS text")["tables"][0]["rows"]
    assert text == "é" * MAX_CELL + "..."
    whole = ask("metric_values")
    assert any(s.startswith("metrics with a row per step") for s in whole["left_out"])


def test_a_query_that_takes_too_much_is_stopped_and_the_next_one_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEWAREHOUSE_MEMORY_LIMIT", "100MB")
    query = TOOLS["query"]
    long = "SELECT count(*) FROM range(100000000000) AS a, range(1000) AS b WHERE hash(a.range + b.range) = 3"
    with open_warehouse(folder) as warehouse:
        with pytest.raises(QueryError, match=r"time limit of 0\.2 s"):
            query(sql=long).ask(warehouse, 0.2)
        with pytest.raises(QueryError, match="memory limit"):
            query(sql="SELECT list(i) FROM range(100000000) AS t(i)").ask(warehouse)
        assert query(sql="SELECT count(*) FROM runs").ask(warehouse).tables[0].rows == [[3]]


def test_a_query_that_cannot_be_stopped_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One function of one long value; the next question gets another warehouse."""
    pytest.importorskip("mcp", reason="the protocol's package mcp is not installed")
    import anyio

    from tracewarehouse.mcp_server.server import Questions

    monkeypatch.setattr("tracewarehouse.queries.read_only.PATIENCE_SECONDS", 0.0)
    stuck = "SELECT levenshtein(repeat('a', 20000) || i, repeat('b', 20000)) FROM range(1) AS t(i)"

    async def asked() -> tuple[Any, Any]:
        return await questions.ask("query", {"sql": stuck}), await questions.ask("describe", {"names": "ops"})

    questions = Questions(open_warehouse(folder), 0.05)
    first, second = anyio.run(asked)
    assert first.is_error
    assert "time limit" in first.content[0].text
    assert questions.is_stuck
    assert not second.is_error, second.content


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("summary", {"run": "befora"}, r"no run 'befora'.*did you mean before\?"),
        ("metric_values", {"metrics": ["tpott"]}, r"no metric 'tpott'; did you mean tpot\?"),
        ("compare", {"run": "before", "baseline": "aftr"}, r"did you mean after\?"),
        ("compare", {"run": "before", "baseline": "after", "metrics": ["tpo"]}, r"no metric tpo; did you mean tpot\?"),
        ("describe", {"names": ["leaf_op"]}, r"did you mean leaf_ops"),
        ("describe", {"search": "unicorn"}, r"nothing has 'unicorn'"),
        ("timeline", {"run": "before", "device": 7}, r"no device 7; it has 0, 1"),
        ("timeline", {"run": "before", "start_ms": 5, "end_ms": 4}, r"is empty; the ops of device 0 run from 0"),
        ("query", {"sql": "SELECT * FROM op"}, r"Did you mean \"main\.ops\"|ops"),
        ("query", {"sql": "SELECT duration FROM ops"}, r"duration_ps"),
        ("query", {"sql": "SELECT 1 FROM runs WHERE"}, r"syntax error"),
        ("query", {}, r"query: it needs the argument 'sql'\. Its arguments are sql, max_rows"),
        ("query", {"sql": "SELECT 1", "limit": 3}, r"it has no argument 'limit'"),
        ("query", {"sql": "SELECT 1", "max_rows": 10**6}, r"max_rows: input should be less than or equal to 1000"),
        ("run_shell", {}, r"no tool 'run_shell'; there are list_runs, describe"),
    ],
)  # fmt: skip
def test_a_wrong_question_is_told_what_to_ask(refused: Ask, tool: str, arguments: dict[str, Any], said: str) -> None:
    message = refused(tool, **arguments)
    assert re.search(said, message), message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    "sql",
    [
        "DROP VIEW runs",
        "COPY (SELECT 1) TO '/tmp/x.csv'",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/*')",
        "ATTACH '/tmp/x.duckdb'",
        "SELECT 1; DROP VIEW runs",
        "SET memory_limit = '1TB'",
    ],
)
def test_it_only_reads_the_warehouse(refused: Ask, sql: str) -> None:
    message = refused("query", sql=sql)
    assert "--unrestricted" not in message


def test_new_runs_show_up(ask: Ask, folder: Path, tmp_path: Path) -> None:
    with open_warehouse(folder) as warehouse:
        warehouse.ingest(step_capture(30).write(tmp_path / "x.xplane.pb"), mesh="tp=2", name="later")
        assert "later" in {r["name"] for r in rows(ask("list_runs"), "runs")}
        assert ask("query", sql="SELECT count(*) FROM runs")["tables"][0]["rows"] == [[4]]
        warehouse.remove("later")
    assert len(rows(ask("list_runs"), "runs")) == 3


def test_standard_output_carries_the_protocol_alone(folder: Path) -> None:
    """One line of JSON per answer, and an end with the input."""
    facts = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": facts},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "flags", "arguments": {}}},
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tracewarehouse", "-w", str(folder), "mcp"],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[0]["result"]["serverInfo"]["name"] == "tracewarehouse"
    assert all(a["jsonrpc"] == "2.0" for a in answers)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_the_input_is_open(folder: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "tracewarehouse", "-w", str(folder), "mcp"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    process.stdin.write(json.dumps(ping) + "\n")
    process.stdin.flush()
    process.stdout.readline()  # it serves
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    _, said = process.communicate()
    assert "Traceback" not in said


def test_without_the_package_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "tracewarehouse.mcp_server.server", raising=False)
    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel", None)
    assert run(["-w", str(folder), "mcp"]) == 1
    assert "pip install 'tracewarehouse[mcp]'" in capsys.readouterr().err


def test_the_skill_prints_and_names_what_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mcp", "--skill"]) == 0
    printed = capsys.readouterr().out
    assert printed == skill()
    _, front, body = printed.split("---\n", 2)
    assert front.startswith("name: tracewarehouse\ndescription: ")
    assert all(f"`{tool}`" in body for tool in TOOLS)


def test_every_command_and_query_of_the_skill_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a capture of two devices, and a second run to compare it with; a query gives rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRACEWAREHOUSE", raising=False)
    capture = step_capture(24).write(tmp_path / "now.xplane.pb")
    with open_warehouse("warehouse", create=True) as warehouse:
        warehouse.ingest(step_capture(44).write(tmp_path / "other.xplane.pb"), name="before")
    commands = [
        line.strip()
        for block in re.findall(r"```bash\n(.*?)```", skill(), re.DOTALL)
        for line in block.splitlines()
        if line.strip()
    ]
    assert len(commands) >= 12
    run_id = ""
    for command in commands:
        told = command.replace("BASELINE", "before").replace("CAPTURE", str(capture))
        told = told.replace("RUN_ID", run_id).replace("RUN", "now")
        assert run(shlex.split(told)[1:]) == 0, (command, capsys.readouterr().err)
        assert capsys.readouterr().out.strip(), command
        if command.startswith("tw ingest"):
            with open_warehouse("warehouse") as warehouse:
                run_id = warehouse.run("now").run_id
    queries = re.findall(r"```sql\n(.*?)```", skill(), re.DOTALL)
    assert len(queries) >= 4
    with open_warehouse("warehouse") as warehouse:
        for sql in queries:
            assert len(warehouse.query(sql.replace("RUN_ID", run_id))), sql
        schemas = re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", skill(), re.MULTILINE)
        assert [name for name, _ in schemas] == ["main", "models", "metrics", "macros"]
        for schema, examples in schemas[:3]:
            for name in re.findall(r"`([\w.]+)`", examples):
                warehouse.query(f"SELECT * FROM {name if '.' in name else f'{schema}.{name}'} LIMIT 1")
