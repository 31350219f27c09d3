"""Compiles programs for a TPU that is not there: `python compile_ahead.py TOPOLOGY OUTPUT PROGRAM...`.

It runs with jax and libtpu and without the rest of the package, because torch_xla pins another libtpu. A program is HLO
text before optimizations, in a file with the name of its step. OUTPUT gets the compiled program as HloProto, gzipped,
and NAME.json with the memory of a chip by the compiler's account, in bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any


def main(topology: str, output: Path, programs: list[Path]) -> None:
    """Compile programs that are for as many chips as the topology has."""
    devices = chips(topology)
    for path in programs:
        text = without_folders(path.read_text(encoding="utf-8"))
        stated = re.search(r"num_partitions=(\d+)", text.partition("\n")[0])
        count = int(stated[1]) if stated else 1
        if count != len(devices):
            sys.exit(f"error: {topology} has {len(devices)} chips, and {path.name} is a program for {count}")
        write_program(output, path.stem, _compiled(devices, text), devices[0].device_kind)


def chips(topology: str) -> Any:
    """Return the chips of a slice that need not exist, as JAX's devices; libtpu calls it v6e:2x4, for example."""
    generation = topology.partition(":")[0].replace("v5e", "v5litepod")
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": f"{generation}-8",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nothing is run on a chip that another process could hold
    }
    from jax.experimental import topologies  # libtpu reads the variables when it is loaded

    return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices


def write_program(output: Path, name: str, executable: Any, kind: str) -> None:
    """Write a compiled program (an executable of XLA's client), its kind of chip and its memory."""
    module = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
    (output / f"{name}.hlo.pb.gz").write_bytes(gzip.compress(as_hlo_proto(module)))
    stats = executable.get_compiled_memory_stats()
    memory = {
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes,
        "aliased": stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "program": stats.generated_code_size_in_bytes,
    }
    said = {"device_kind": kind, "memory": memory}
    (output / f"{name}.json").write_text(json.dumps(said), encoding="utf-8")


def without_folders(text: str) -> str:
    """Return the program with the names of source files, without their folders."""
    return re.sub(r'"/[^"\s]*/([^"/]*)"', r'"\1"', text)


def donated_arguments(text: str) -> set[int]:
    """Return the numbers of the arguments whose memory the results may take."""
    donors = re.search(r"buffer_donor=\{(.*?)\}, entry", text.partition("\n")[0])
    return {int(n) for n in re.findall(r"\((\d+), \{\}\)", donors[1])} if donors else set()


def as_hlo_proto(module: bytes) -> bytes:
    """Return an HloProto with this serialized module as its field 1."""
    length, head = len(module), b"\x0a"
    while length > 127:
        head, length = head + bytes([length & 127 | 128]), length >> 7
    return head + bytes([length]) + module


def _compiled(devices: Any, text: str) -> Any:
    from jaxlib import xla_client

    module, client = _stablehlo(text), devices[0].client
    how = {
        "executable_devices": xla_client.DeviceList(tuple(devices)),
        "compile_options": _options(len(devices)),
    }
    try:
        return client.compile(module, **how)
    except TypeError:  # jaxlib 0.7 takes bytecode
        code = io.BytesIO()
        module.operation.write_bytecode(code)
        return client.compile(code.getvalue(), **how)


def _stablehlo(text: str) -> Any:
    """Return the program with its shardings and donated buffers, which the converter drops."""
    from jax.interpreters.mlir import make_ir_context
    from jaxlib import xla_client
    from jaxlib.mlir import ir

    try:
        from jaxlib import _hlo as hlo
    except ImportError:  # jaxlib 0.7
        hlo = xla_client._xla
    donated = donated_arguments(text)
    proto = hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    with make_ir_context():
        module = ir.Module.parse(xla_client._xla.mlir.hlo_to_stablehlo(proto))
        entry = next(f for f in module.body if ir.StringAttr(f.attributes["sym_name"]).value == "main")
        donor = {"jax.buffer_donor": ir.BoolAttr.get(True)}
        entry.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [
                ir.DictAttr.get({a.name: a.attr for a in attributes} | (donor if number in donated else {}))
                for number, attributes in enumerate(entry.attributes["arg_attrs"])
            ]
        )
    return module


def _options(count: int) -> Any:
    import numpy as np
    from jaxlib import xla_client

    options = xla_client.CompileOptions()
    build = options.executable_build_options
    options.num_replicas = build.num_replicas = 1
    options.num_partitions = build.num_partitions = count
    build.use_spmd_partitioning, build.use_shardy_partitioner = True, False  # torch_xla annotates for GSPMD
    build.allow_spmd_sharding_propagation_to_output = [True]  # as torch_xla does
    assignment = xla_client.DeviceAssignment.create(np.arange(count).reshape(1, -1))
    options.device_assignment = build.device_assignment = assignment
    return options


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [Path(p) for p in sys.argv[3:]])
