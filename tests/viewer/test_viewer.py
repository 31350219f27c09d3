"""`tw open`: the Perfetto UI and a run's trace from this machine, for this machine alone; XProf on the capture."""

from __future__ import annotations

import gzip
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from perfetto_reader import read_trace
from perfetto_ui import READY, evaluated, folder_of_ui
from tiny_capture import write_capture_directory
from typer.testing import CliRunner

from tracewarehouse.cli import app
from tracewarehouse.exports.perfetto.export import export_perfetto
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.viewer import xprof
from tracewarehouse.viewer.perfetto import serving
from tracewarehouse.viewer.xprof import log_folder
from tracewarehouse.warehouse import Warehouse, open_warehouse


def made(tmp_path: Path) -> tuple[Warehouse, Path]:
    warehouse = open_warehouse(tmp_path / "warehouse", create=True)
    warehouse.ingest(write_capture_directory(tmp_path / "tiny"))
    return warehouse, export_perfetto(warehouse, ["tiny-tp2"], tmp_path / "trace.pftrace.gz")


@contextmanager
def answering(trace: Path, title: str = "tiny-tp2", ui: Path | None = None) -> Iterator[str]:
    with serving(trace, title, ui) as (server, address):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield address
        finally:
            server.shutdown()
            thread.join()


def get(address: str, path: str, host: str | None = None, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    place = urlsplit(address).netloc
    connection = http.client.HTTPConnection(place, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers={"Host": host or place} | named)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_the_trace_is_served_to_this_machine_alone(tmp_path: Path) -> None:
    _, trace = made(tmp_path)
    with answering(trace) as address:
        port = urlsplit(address).port
        assert get(address, "/trace.pftrace.gz") == (200, trace.read_bytes())
        assert get(address, "/trace.pftrace.gz", f"localhost:{port}") == (200, trace.read_bytes())
        assert get(address, "/trace.pftrace.gz", method="HEAD") == (200, b"")
        for other in ("example.com", f"example.com:{port}", "127.0.0.1", f"127.0.0.1.example.com:{port}"):
            assert get(address, "/trace.pftrace.gz", other)[0] == 403
        own = address.rstrip("/")
        assert get(address, "/trace.pftrace.gz", Origin=own, Sec_Fetch_Site="same-origin")[0] == 200
        for origin in ("http://example.com", "null", own.replace("http", "https")):
            assert get(address, "/trace.pftrace.gz", Origin=origin)[0] == 403
        for path in ("/warehouse", "/../warehouse", "/handover.html", "/%2e%2e/"):
            assert get(address, path)[0] == 404
        assert get(address, "/", method="POST")[0] == 501


def test_the_page_escapes_the_name_of_the_run(tmp_path: Path) -> None:
    _, trace = made(tmp_path)
    with answering(trace, 'a<script>"&') as address:
        status, page = get(address, "/")
    assert status == 200
    assert b"<h1>a&lt;script&gt;&quot;&amp;</h1>" in page
    assert b"<script>" not in page


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.pftrace.gz"
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), object) as taken,  # type: ignore[arg-type]
        pytest.raises(TracewarehouseError, match=f"port {taken.server_port} cannot be used"),
        serving(trace, "x", None, taken.server_port),
    ):
        pass


@pytest.mark.slow
def test_the_ui_shows_the_trace_without_a_network(tmp_path: Path) -> None:
    ui = folder_of_ui()
    _, trace = made(tmp_path)
    count = "app.trace.engine.query('SELECT count(*) AS n FROM slice').then((r) => Number(r.iter({}).get('n')))"
    with answering(trace, ui=ui) as address:
        assert address.split("&")[0].endswith("/trace.pftrace.gz")
        shown = evaluated(address, count, READY)
    assert shown == sum(len(t.slices) for t in read_trace(trace).tracks.values())


LOADED = "document.readyState === 'complete' && !!document.getElementById('open')"
HAND_OVER = """new Promise((done) => {
  const told = [];
  const ui = {postMessage: (message, origin, moved) => {
    told.push([typeof message, origin]);
    if (message === 'PING') {
      if (told.length === 1) window.dispatchEvent(new MessageEvent('message', {data: 'PONG', origin: 'http://other'}));
      else window.dispatchEvent(new MessageEvent('message', {data: 'PONG', origin: 'https://ui.perfetto.dev'}));
    } else {
      done([told, message.perfetto.buffer.byteLength, message.perfetto.title, moved.length]);
    }
  }};
  window.open = () => ui;
  document.getElementById('open').click();
})"""


@pytest.mark.slow
def test_the_page_hands_the_trace_to_the_public_ui_at_a_click(tmp_path: Path) -> None:
    """Once the UI has answered, and to no other page than the UI."""
    _, trace = made(tmp_path)
    with answering(trace) as address:
        told, size, title, moved = evaluated(address, HAND_OVER, LOADED)
    assert told == [["string", "https://ui.perfetto.dev"]] * 2 + [["object", "https://ui.perfetto.dev"]]
    assert (size, title, moved) == (trace.stat().st_size, "tiny-tp2", 1)


@pytest.mark.slow
def test_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    made(tmp_path)
    command = [sys.executable, "-m", "tracewarehouse", "-w", str(tmp_path / "warehouse"), "open", "tiny-tp2"]
    with subprocess.Popen(
        [*command, "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        place = urlsplit(address)
        status, raw = get(f"{place.scheme}://{place.netloc}/", "/trace.pftrace.gz")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert (status, process.returncode) == (200, 0)
    assert gzip.decompress(raw)
    assert said == "Ctrl-C ends the server\n"


def test_xprof_gets_the_files_that_the_run_was_made_from(tmp_path: Path) -> None:
    warehouse, _ = made(tmp_path)
    (tmp_path / "tiny" / "other.xplane.pb").write_bytes(b"")
    logs = log_folder(warehouse, "tiny-tp2", tmp_path / "tiny", tmp_path / "logs")
    [link] = logs.rglob("*.xplane.pb")
    assert link.relative_to(logs) == Path("plugins/profile/tiny-tp2/vm.xplane.pb")
    assert link.read_bytes() == next((tmp_path / "tiny").rglob("vm.xplane.pb")).read_bytes()


def test_another_capture_is_refused(tmp_path: Path) -> None:
    warehouse, _ = made(tmp_path)
    with pytest.raises(TracewarehouseError, match="is the capture of run tiny-tp2 on host vm"):
        log_folder(warehouse, "tiny-tp2", tmp_path / "warehouse", tmp_path / "logs")


def test_xprof_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    monkeypatch.setattr(xprof.importlib.util, "find_spec", lambda _: None)
    options = ["-w", str(tmp_path / "warehouse"), "open", "tiny-tp2", "--viewer", "xprof"]
    without = CliRunner().invoke(app, options)
    assert "name the file or folder with --capture" in str(without.exception)
    failed = CliRunner().invoke(app, [*options, "--capture", str(tmp_path / "tiny")])
    assert "pip install 'tracewarehouse[xprof]'" in str(failed.exception)


@pytest.mark.slow
def test_xprof_opens_the_capture_of_a_run(tmp_path: Path) -> None:
    """It lists the run, reads its capture, and ends with Ctrl-C."""
    if find_spec("xprof") is None:
        pytest.skip("XProf is not installed; pip install 'tracewarehouse[xprof]'")
    made(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tracewarehouse", "-w", str(tmp_path / "warehouse"), "open", "tiny-tp2"]
    options = ["--viewer", "xprof", "--capture", str(tmp_path / "tiny"), "--port", str(port)]
    with (
        (tmp_path / "said").open("w") as said,
        subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=said, text=True) as process,
    ):
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address == f"http://localhost:{port}/"
        found = None
        while found is None and process.poll() is None:
            try:
                found = get(address, "/data/plugin/profile/runs")
            except ConnectionRefusedError:
                time.sleep(0.5)
        status, page = get(address, "/data/plugin/profile/data?run=tiny-tp2&tag=overview_page&host=vm")
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)
    assert found is not None
    assert json.loads(gzip.decompress(found[1])) == ["tiny-tp2"]
    assert status == 200
    assert json.loads(gzip.decompress(page))
    assert process.returncode == 0
    assert "Traceback" not in (tmp_path / "said").read_text()
