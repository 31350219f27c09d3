"""Attaching to profiler servers: fake ones of every kind, and the real one of torch_xla."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tiny_capture import tiny_capture
from typer.testing import CliRunner

from tracewarehouse.cli import app
from tracewarehouse.collect import attach as attaching
from tracewarehouse.collect.attach import AttachError, ProfileRequest, ProfileResponse, attach
from tracewarehouse.collect.errors import MissingDependencyError
from tracewarehouse.ingest.capture.manifest import Mesh, load_manifest
from tracewarehouse.ingest.pipeline import ingest_one

grpc = pytest.importorskip("grpc")


def xspace() -> bytes:
    return tiny_capture().to_bytes()


Answer = Callable[[Any, Any], Any]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """Starts a server that answers Profile; gives its address."""
    servers = []

    def start(answer: Answer, service: str = "tensorflow.ProfilerService") -> str:
        handler = grpc.unary_unary_rpc_method_handler(
            answer, ProfileRequest.FromString, ProfileResponse.SerializeToString
        )
        server = grpc.server(ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Profile": handler}),))
        port = server.add_insecure_port("localhost:0")
        server.start()
        servers.append(server)
        return f"localhost:{port}"

    yield start
    for server in servers:
        server.stop(None).wait()


def sends(request: Any, context: Any) -> Any:
    assert request.emit_xspace
    return ProfileResponse(xspace=xspace())


def sends_as_tool(request: Any, context: Any) -> Any:
    return ProfileResponse(tool_data=[{"name": b"x.html", "data": b"?"}, {"name": b"xplane.pb", "data": xspace()}])


def writes(request: Any, context: Any) -> Any:
    folder = Path(request.repository_root.decode()) / request.session_id.decode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{request.host_name.decode()}.xplane.pb").write_bytes(xspace())
    return ProfileResponse()


def writes_below(request: Any, context: Any) -> Any:
    """As TensorFlow did: it put plugins/profile below the folder by itself."""
    folder = Path(request.repository_root.decode()) / "plugins" / "profile" / "s"
    folder.mkdir(parents=True)
    (folder / f"{request.host_name.decode()}.xplane.pb").write_bytes(xspace())
    return ProfileResponse()


@pytest.mark.parametrize("answer", [sends, sends_as_tool, writes, writes_below])
def test_a_profile_becomes_a_capture_however_the_server_gives_it(
    serve: Callable[[Answer], str], answer: Answer, tmp_path: Path
) -> None:
    address = serve(answer)
    host = address.replace(":", "_")

    capture = attach([address], tmp_path, 50, mesh=Mesh.parse("tp=2"), model="mine")

    manifest = load_manifest(capture / "manifest.json")
    assert capture.name.startswith(f"{host}-20")
    assert (manifest.hosts, manifest.backend, manifest.dtype, manifest.batch_size) == ([host], None, None, None)
    assert (str(manifest.mesh), manifest.model.name if manifest.model else None) == ("tp=2", "mine")
    assert (manifest.model_extra or {})["attached"] == {"addresses": [address], "duration_ms": 50}
    (file,) = capture.glob(f"plugins/profile/*/{host}.xplane.pb")
    assert file.read_bytes() == xspace()
    assert [p.name for p in tmp_path.iterdir()] == [capture.name]


def test_several_servers_are_the_hosts_of_one_run(serve: Callable[[Answer], str], tmp_path: Path) -> None:
    asked: list[float] = []

    def slowly(request: Any, context: Any) -> Any:
        asked.append(time.monotonic())
        while len(asked) < 2:  # answers only when both are asked at the same time
            time.sleep(0.01)
        return sends(request, context)

    addresses = [serve(slowly), serve(slowly)]

    capture = attach(addresses, tmp_path, 50)

    names = sorted(a.replace(":", "_") for a in addresses)
    assert sorted(load_manifest(capture / "manifest.json").hosts) == names
    assert sorted(f.name for f in capture.rglob("*.pb")) == [f"{n}.xplane.pb" for n in names]


def fails(request: Any, context: Any) -> Any:
    context.abort(grpc.StatusCode.ALREADY_EXISTS, "Another profiling session\nactive.")


def hangs(request: Any, context: Any) -> Any:
    while context.is_active():
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (fails, "the server cannot record: ALREADY_EXISTS: Another profiling session active.; another profile may be"),
        (hangs, "the server did not answer within 0.3 s after the 50 ms; .* record for less time"),
        (lambda r, c: ProfileResponse(empty_trace=True), "nothing was recorded in 50 ms; record while the model works"),
        (
            lambda r, c: ProfileResponse(),
            "the server recorded, but wrote the profile to .* on its own host",
        ),
        (lambda r, c: c.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed"), "the connection broke .*still running"),
    ],
)
def test_a_server_that_gives_nothing_is_named(
    serve: Callable[[Answer], str], answer: Answer, message: str, tmp_path: Path
) -> None:
    address = serve(answer)

    with pytest.raises(AttachError, match=f"^{address}: {message}"):
        attach([address], tmp_path, 50, grace_s=0.3)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_profiler_server_is_named(
    serve: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = serve(sends, "vllm.Generation")
    with pytest.raises(AttachError, match=f"^{address}: answers, but is no profiler server; is it the port of"):
        attach([address], tmp_path, 50)
    monkeypatch.setattr(attaching, "CONNECT_S", 0.3)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    with pytest.raises(AttachError, match=f"^localhost:{port}: no profiler server answers within 0.3 s; start one in"):
        attach([f"localhost:{port}"], tmp_path / "new" / "captures", 50)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":9012", "localhost:port", "localhost:99999", ""])
def test_an_address_has_host_and_port(address: str, tmp_path: Path) -> None:
    with pytest.raises(AttachError, match="is no address of a profiler server; write HOST:PORT"):
        attach([address], tmp_path / "new" / "captures", 50)
    assert not list(tmp_path.iterdir())
    with pytest.raises(AttachError, match="given twice"):
        attach(["a:1", "a:1"], tmp_path, 50)


def test_without_grpc_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(attaching, "find_spec", lambda name: None)

    with pytest.raises(MissingDependencyError, match=r"pip install 'tracewarehouse\[attach\]'"):
        attach(["localhost:9012"], tmp_path, 50)


def test_the_command_line(serve: Callable[[Answer], str], tmp_path: Path) -> None:
    address = serve(sends)

    done = CliRunner().invoke(
        app,
        ["collect", "--attach", address, "--duration-ms", "50", "--mesh", "tp=1", "--batch", "3", "-o", str(tmp_path)],
    )

    assert done.exit_code == 0, done.output
    (capture,) = tmp_path.iterdir()
    assert done.stdout.strip() == str(capture)
    assert json.loads((capture / "manifest.json").read_text())["batch_size"] == 3
    assert CliRunner().invoke(app, ["collect", "tiny", "--attach", address]).exit_code == 2
    assert CliRunner().invoke(app, ["collect", "--layers", "3", "--attach", address]).exit_code == 2
    assert CliRunner().invoke(app, ["collect", "--mesh", "four", "--attach", address]).exit_code == 2
    failed = CliRunner().invoke(app, ["collect", "--attach", "nowhere", "-o", str(tmp_path)])
    assert (failed.exit_code, len(list(tmp_path.iterdir()))) == (1, 1)


SERVER = """
import sys
import numpy as np
import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.debug.profiler as xp
import torch_xla.distributed.spmd as spmd, torch_xla.runtime as xr
xr.use_spmd()
server = xp.start_server(int(sys.argv[1]))
value = torch.randn(64, 64).to("xla")
spmd.mark_sharding(value, spmd.Mesh(np.arange(2), (2,), ("tp",)), ("tp", None))
print("ready", flush=True)
while True:
    value = (value @ value).tanh()
    torch_xla.sync()
    xm.wait_device_ops()
    torch_xla._XLAC._get_local_shards([value])
"""


@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is None, reason="torch_xla is not installed")
def test_a_process_of_torch_xla(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", SERVER, str(port)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            done = CliRunner().invoke(
                app, ["collect", "--attach", f"localhost:{port}", "--duration-ms", "1000", "-o", str(tmp_path)]
            )
        finally:
            server.kill()

    assert done.exit_code == 0, done.output
    (file,) = tmp_path.glob(f"localhost_{port}-*/plugins/profile/*/localhost_{port}.xplane.pb")
    ingest_one(file.parents[3], tmp_path / "warehouse")
    (table,) = (tmp_path / "warehouse").rglob("collectives.parquet")
    rows = pq.read_table(table, columns=["kind", "group_size", "device_id"]).to_pylist()
    assert {(r["kind"], r["group_size"], r["device_id"]) for r in rows} == {("all-gather", 2, 0), ("all-gather", 2, 1)}
