"""Records captures from a profiler server that already runs in vLLM, JetStream, MaxText, JAX or torch_xla."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tracewarehouse.collect.capture import staged_capture, write_manifest
from tracewarehouse.collect.errors import CollectError, MissingDependencyError
from tracewarehouse.ingest.capture.manifest import Manifest, Mesh, ModelFacts
from tracewarehouse.ingest.capture_names import XPLANE_SUFFIX, xplane_files
from tracewarehouse.ingest.protobuf import Field, message_classes

CONNECT_S = 10.0
START = "start one in the process that runs the model: jax.profiler.start_server(PORT), or xp.start_server of torch_xla"


class AttachError(CollectError):
    """A profiler server gave no capture."""


def attach(
    addresses: Sequence[str],
    output: Path,
    duration_ms: int,
    *,
    mesh: Mesh | None = None,
    model: str | None = None,
    dtype: str | None = None,
    batch_size: int | None = None,
    input_length: int | None = None,
    output_length: int | None = None,
    grace_s: float = 120.0,
) -> Path:
    """Record through one or several servers for some time, and write a capture directory.

    All servers record at the same time; each is a host of the run. No server tells what ran, so the manifest has what
    the caller knows.

    `addresses` are HOST:PORT of each host's server, which must answer within `grace_s` after the recording.

    Returns:
        The capture directory, `output/<first host>-<port>-<time>`.
    """
    if find_spec("grpc") is None:
        raise MissingDependencyError(
            "attaching needs grpcio, which is not installed: pip install 'tracewarehouse[attach]'"
        )
    hosts = [_host_name(address) for address in addresses]
    if twice := [h for h in hosts if hosts.count(h) > 1]:
        raise AttachError(f"{twice[0]}: is given twice; each server is one host")
    session = time.strftime("%Y_%m_%d_%H_%M_%S")
    name = f"{hosts[0]}-{session}"
    with staged_capture(output, name) as staging, ThreadPoolExecutor(len(hosts)) as pool:
        profiles = staging / "plugins" / "profile"
        (profiles / session).mkdir(parents=True)
        asked = [
            pool.submit(_record, address, profiles, session, host, duration_ms, grace_s)
            for address, host in zip(addresses, hosts, strict=True)
        ]
        for answer in asked:
            answer.result()
        extra: dict[str, Any] = {"attached": {"addresses": list(addresses), "duration_ms": duration_ms}}
        write_manifest(
            staging,
            Manifest(
                name=name,
                model=ModelFacts(name=model) if model else None,
                backend=None,
                dtype=dtype,
                batch_size=batch_size,
                input_length=input_length,
                output_length=output_length,
                mesh=mesh,
                hosts=hosts,
                versions={"tracewarehouse": version("tracewarehouse")},
                **extra,
            ),
        )
    return output / name


def _host_name(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise AttachError(f"{address!r} is no address of a profiler server; write HOST:PORT, as in localhost:9012")
    return re.sub(r"[^\w.-]", "", host, flags=re.ASCII) + f"_{port}"


def _record(address: str, profiles: Path, session: str, host: str, duration_ms: int, grace_s: float) -> None:
    import grpc

    # A server that does not send the profile back writes it into this folder itself, if it can reach it.
    request = ProfileRequest(
        duration_ms=duration_ms,
        opts=ProfileOptions(
            version=1, host_tracer_level=2, device_tracer_level=1, enable_hlo_proto=True, duration_ms=duration_ms
        ),
        repository_root=str(profiles.resolve()).encode(),
        session_id=session.encode(),
        host_name=host.encode(),
        emit_xspace=True,
    )
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
    with closing(grpc.insecure_channel(address, options=unlimited)) as channel:
        try:
            grpc.channel_ready_future(channel).result(CONNECT_S)
        except grpc.FutureTimeoutError:
            raise AttachError(f"{address}: no profiler server answers within {CONNECT_S:g} s; {START}") from None
        profile = channel.unary_unary(PROFILE, ProfileRequest.SerializeToString, ProfileResponse.FromString)
        try:
            answer = profile(request, timeout=duration_ms / 1000 + grace_s)
        except grpc.RpcError as error:
            raise AttachError(_failure(address, error, duration_ms, grace_s)) from None
    _keep(answer, address, profiles, session, host, duration_ms)


def _keep(answer: Any, address: str, profiles: Path, session: str, host: str, duration_ms: int) -> None:
    file = profiles / session / f"{host}{XPLANE_SUFFIX}"
    sent = answer.xspace or next((t.data for t in answer.tool_data if t.name.endswith(XPLANE_SUFFIX[1:].encode())), b"")
    written = [f for f in xplane_files(profiles) if host in f.name and f.stat().st_size]
    if answer.empty_trace:
        raise AttachError(
            f"{address}: nothing was recorded in {duration_ms} ms; record while the model works, or for longer "
            "(--duration-ms)"
        )
    if sent:
        file.write_bytes(sent)
    elif not written:
        raise AttachError(
            f"{address}: the server recorded, but wrote the profile to {profiles.resolve()} on its own host, as older "
            "ones do; run tw there, or choose an --output that both hosts see"
        )
    elif written[0] != file:
        shutil.move(written[0], file)


def _failure(address: str, error: Any, duration_ms: int, grace_s: float) -> str:
    import grpc

    code, said = error.code(), " ".join(str(error.details()).split())
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return (
            f"{address}: the server did not answer within {grace_s:g} s after the {duration_ms} ms; a large profile "
            "takes long to send: record for less time"
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return f"{address}: answers, but is no profiler server; is it the port of the model's own service? {START}"
    if code == grpc.StatusCode.UNAVAILABLE:
        return f"{address}: the connection broke while recording ({said}); is the process still running?"
    return (
        f"{address}: the server cannot record: {code.name}: {said}; another profile may be going on; a process "
        "can have only one at a time"
    )


PROFILE = "/tensorflow.ProfilerService/Profile"

_MESSAGES = message_classes(
    "tracewarehouse.profiler_service",
    {
        "ProfileOptions": [
            Field(2, "host_tracer_level", "int32"),
            Field(3, "device_tracer_level", "int32"),
            Field(4, "python_tracer_level", "int32"),
            Field(5, "version", "int32"),
            Field(7, "enable_hlo_proto", "bool"),
            Field(9, "duration_ms", "uint64"),
        ],
        "ProfileRequest": [
            Field(1, "duration_ms", "uint64"),
            Field(4, "opts", "ProfileOptions"),
            Field(5, "repository_root", "bytes"),
            Field(6, "session_id", "bytes"),
            Field(7, "host_name", "bytes"),
            Field(9, "emit_xspace", "bool"),
        ],
        "ProfileToolData": [Field(1, "name", "bytes"), Field(2, "data", "bytes")],
        "ProfileResponse": [
            Field(6, "tool_data", "ProfileToolData", is_repeated=True),
            Field(7, "empty_trace", "bool"),
            Field(8, "xspace", "bytes"),
        ],
    },
)
ProfileOptions = _MESSAGES["ProfileOptions"]
ProfileRequest = _MESSAGES["ProfileRequest"]
ProfileResponse = _MESSAGES["ProfileResponse"]
