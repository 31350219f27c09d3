"""The server as a process: many clients, long queries, its end, and ports that are taken."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from typer.testing import CliRunner

from tracewarehouse.cli import app
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.warehouse import open_warehouse

pytestmark = pytest.mark.slow

LONG = "SELECT count(*) FROM range(100000000000) AS a, range(1000) AS b WHERE hash(a.range + b.range) = 3"
CLIENTS = 50


@contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its host and port."""
    command = [sys.executable, "-m", "tracewarehouse", "-w", str(folder), "serve", "--port", "0", "--no-browser"]
    environment = os.environ | {"TRACEWAREHOUSE_MEMORY_LIMIT": "2GiB"}
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            yield process, urlsplit(process.stdout.readline().strip()).netloc
        finally:
            process.kill()


def get(place: str, path: str, **headers: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection(place, timeout=300)) as connection:
        connection.request("GET", path, headers={"Host": place} | headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def ask(place: str, sql: str) -> tuple[int, str]:
    return get(place, f"/sql.json?sql={quote(sql)}")


def test_fifty_clients_are_answered_while_long_queries_are_cut_off(folder: Path, ids: dict[str, str]) -> None:
    """Long queries take the places of questions only; pages go on, and the questions that wait are answered too."""
    with open_warehouse(folder) as opened:
        events = dict(opened.query("SELECT run_id, event_count FROM runs").rows())
    run_ids = sorted(events)
    with served(folder, "--time-limit", "3") as (process, place), ThreadPoolExecutor(CLIENTS + 4) as clients:
        long = [clients.submit(ask, place, LONG) for _ in range(3)]
        pages = [clients.submit(get, place, f"/runs.json?name=&since={i % 5 + 1900}") for i in range(CLIENTS // 2)]
        chosen = [run_ids[i % len(run_ids)] for i in range(CLIENTS - CLIENTS // 2)]
        asked = [clients.submit(ask, place, f"SELECT event_count AS n FROM runs WHERE run_id = '{r}'") for r in chosen]
        for page in pages:
            status, text = page.result()
            assert status == 200
            assert {r["run_id"] for r in json.loads(text)} <= set(ids.values())
        for run_id, answer in zip(chosen, asked, strict=True):
            assert answer.result() == (200, f'[{{"n": {events[run_id]}}}]\n')
        for cut in long:
            status, text = cut.result()
            assert (status, "longer than its time limit of 3 s" in text) == (400, True)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "Ctrl-C ends the server\n")


def test_a_query_beyond_its_memory_leaves_the_server_alive(folder: Path) -> None:
    with served(folder) as (process, place):
        status, text = ask(place, "SELECT list(range) AS l FROM range(500000000)")
        assert (status, "more than its memory limit of 512.0 MiB" in text) == (400, True)
        status, text = ask(place, "SELECT len(range(1000000000))")  # DuckDB does not count it
        assert (status, "more than its memory limit of 512.0 MiB" in text) == (400, True)
        assert ask(place, "SELECT 1 AS a") == (200, '[{"a": 1}]\n')
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0


def test_interrupted_during_a_query_it_ends_at_once_and_quietly(folder: Path) -> None:
    with (
        served(folder, "--time-limit", "600") as (process, place),
        closing(http.client.HTTPConnection(place, timeout=300)) as asking,
    ):
        asking.request("GET", f"/sql.json?sql={quote(LONG)}")
        assert get(place, "/static/site.css")[0] == 200  # the query was accepted before
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "Ctrl-C ends the server\n")


def test_an_address_of_others_is_warned_of(folder: Path) -> None:
    with served(folder, "--bind", "0.0.0.0") as (process, place):
        port = place.partition(":")[2]
        assert get(place, "/static/site.css", Host=f"example.com:{port}")[0] == 403
        assert get(place, "/static/site.css", Host=f"192.0.2.7:{port}")[0] == 200
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert said.startswith("warning: everybody who reaches port ")


def test_a_taken_port_is_said_with_a_remedy(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = CliRunner().invoke(app, ["-w", str(folder), "serve", "--port", str(port), "--no-browser"])
    assert isinstance(failed.exception, TracewarehouseError)
    assert f"port {port} of 127.0.0.1 cannot be used" in str(failed.exception)
    assert "--port 0 for a free one" in str(failed.exception)
    elsewhere = CliRunner().invoke(app, ["-w", str(folder), "serve", "--bind", "no host", "--no-browser"])
    assert "no host is not an address of this machine" in str(elsewhere.exception)


def test_without_a_warehouse_or_the_extra_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = CliRunner().invoke(app, ["-w", str(tmp_path / "none"), "serve", "--no-browser"])
    assert "no warehouse at" in str(absent.exception)
    monkeypatch.setitem(sys.modules, "tracewarehouse.serve.server", None)
    monkeypatch.delitem(sys.modules, "uvicorn", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "tracewarehouse.serve.server")
    without = CliRunner().invoke(app, ["-w", str(tmp_path), "serve", "--no-browser"])
    assert "pip install 'tracewarehouse[serve]'" in str(without.exception)
