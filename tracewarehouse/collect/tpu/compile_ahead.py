"""Compiles programs for a TPU that is not there: `python compile_ahead.py TOPOLOGY OUTPUT PROGRAM...`.

It runs with jax and libtpu and without the rest of the package, because torch_xla pins another libtpu. A program is HLO
text before optimizations, in a file with the name of its step. OUTPUT gets the compiled program as HloProto, gzipped,
and NAME.json with the memory of a chip by the compiler's account, in bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAME = re.compile(r"(v\d\w*|tpu\d\w*):([0-9]{1,2}(?:x[0-9]{1,2}){1,2})")
_DIMENSIONS = {"v2": 2, "v3": 2, "v4": 3, "v5e": 2, "v5p": 3, "v6e": 2, "tpu7x": 3}
_HOST = (2, 2, 1)
"""Chips of a host in libtpu's topologies, in each dimension."""


@dataclass(frozen=True)
class Topology:
    """A TPU slice as libtpu names it: a generation and chips in each dimension, such as v6e:2x4 or v4:2x2x1."""

    name: str
    generation: str
    sides: tuple[int, ...]

    @classmethod
    def parse(cls, name: str) -> Topology:
        """Read a name.

        Raises:
            ValueError: it is no name of a topology.
        """
        found = _NAME.fullmatch(name)
        if found is None or not all(sides := tuple(int(side) for side in found[2].split("x"))):
            raise ValueError(f"topology {name}: expected generation and chips per dimension, such as v6e:2x4")
        if len(sides) != (most := _DIMENSIONS.get(found[1], len(sides))):
            raise ValueError(f"topology {name}: chips of {found[1]} are linked in {most} dimensions, not {len(sides)}")
        return cls(name, found[1], sides)

    @property
    def chips(self) -> int:
        """Chips of the slice."""
        return math.prod(self.sides)

    @property
    def devices(self) -> int:
        """Devices that a program sees: TPU7x shows the two halves of a chip as devices of their own, v4 shows one."""
        return self.chips * (2 if self.generation == "tpu7x" else 1)

    @property
    def options(self) -> dict[str, Any]:
        """What `get_topology_desc` must be told beside the name.

        By default libtpu takes a chip of v4 for two devices, a slice for one without wraparound, and a host for four
        chips, which a slice of one or two chips does not have.
        """
        given: dict[str, Any] = {"chip_config_name": "megacore"} if self.generation == "v4" else {}
        if any(closed := wraps(self.sides)):
            given["wrap"] = (*closed, False)[:3]
        host = [min(chips, side) for chips, side in zip(_HOST, (*self.sides, 1), strict=False)]
        return given if host == list(_HOST) else given | {"chips_per_host_bounds": host}


def wraps(sides: Sequence[int]) -> tuple[bool, ...]:
    """Return which dimensions of a slice close to a ring.

    On v4, v5p and TPU7x, of three dimensions, all do in a slice of whole cubes of 4x4x4, otherwise none. On v5e and v6e
    a side of 16 chips does (jax-ml.github.io/scaling-book/tpus, "TPU Networking").
    """
    if len(sides) == 3:
        return (all(side % 4 == 0 for side in sides),) * 3
    return tuple(side == 16 for side in sides)


def main(topology: str, output: Path, programs: list[Path]) -> None:
    """Compile programs that are for as many devices as the topology has."""
    devices = chips(topology)
    for path in programs:
        text = without_folders(path.read_text(encoding="utf-8"))
        stated = re.search(r"num_partitions=(\d+)", text.partition("\n")[0])
        count = int(stated[1]) if stated else 1
        if count != len(devices):
            sys.exit(f"error: {topology} has {len(devices)} devices, and {path.name} is a program for {count}")
        write_program(output, path.stem, _compiled(devices, text), devices[0].device_kind)


def chips(name: str) -> Any:
    """Return the devices of a slice that need not exist, by the name of its topology.

    Raises:
        ValueError: the name is none.
        Exception: libtpu does not know the topology; it raises nothing more special.
    """
    topology = Topology.parse(name)
    generation = topology.generation.replace("v5e", "v5litepod")
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": f"{generation}-8",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nothing is run on a chip that another process could hold
    }
    from jax.experimental import topologies  # libtpu reads the variables when it is loaded

    return topologies.get_topology_desc(platform="tpu", topology_name=name, **topology.options).devices


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
