"""Traces and compiles steps once, and then runs them by the hash of their graph, as a server does.

All uses of torch_xla's private interface for this are here; its bridge to torch.compile makes the same calls
(torch_xla/_dynamo/dynamo_bridge.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla import runtime
from torch_xla.distributed.spmd.xla_sharding import unwrap_sharded_tensor
from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config

from tracewarehouse.collect.errors import CheckError
from tracewarehouse.collect.processes import wait_until_asleep
from tracewarehouse.collect.run_spec import RunSpec

_WHOLE = "{replicated}"


class TraceableModel(Protocol):
    """A model on the devices that keeps its state of a generation in tensors."""

    def begin(self) -> None:
        """Make an empty cache."""

    def blank_input(self, length: int) -> Any:
        """Return the input of a step over `length` positions, on the devices and filled with zeros."""

    def step(self, given: Any) -> tuple[Any, ...]:
        """Return the results of one step; the cache then holds its positions too."""

    def cache_tensors(self) -> list[Any]:
        """Return all tensors that a step reads and writes besides its input."""


@dataclass(frozen=True)
class Program:
    """A compiled step."""

    graph: Any
    """Hash under which torch_xla keeps it."""
    places: list[int | None]
    """Place of each of its parameters in (given, *cache), or None for a weight or constant."""
    constants: list[Any]
    """The weights and constants, None for a parameter with a place."""
    results: int
    """Number of tensors that it returns."""

    def run(self, inputs: list[Any]) -> list[Any]:
        """Start it; the results are there later. The new cache takes the memory of the old one, which is lost."""
        pairs = zip(self.places, self.constants, strict=True)
        results = torch_xla._XLAC._run_cached_graph(self.graph, [c if p is None else inputs[p] for p, c in pairs])
        if len(results) != self.results:
            raise CheckError(f"a compiled step gave {len(results)} tensors where {self.results} were traced")
        return list(results)


@dataclass(frozen=True)
class _Traced:
    """A traced step; `places` are those of `Program`, and `values` has the values of all parameters."""

    outputs: list[Any]
    places: list[int | None]
    values: list[Any]


class ReplayedModel:
    """A model whose prefill and decode step are traced before the first generation.

    A step may depend only on its tensors: a number that Python changes from step to step would keep its value from the
    trace. The comparison with the reference would show it.
    """

    def __init__(self, spec: RunSpec, model: TraceableModel) -> None:
        self._spec, self._model = spec, model
        self._programs: dict[str, Program] = {}
        self._unchecked: set[str] = set()
        self._phase = ""
        self._cache: list[Any] = []
        self._shardings: list[str] = []

    def begin(self) -> None:
        """Start a new generation with an empty cache; the first time, trace and compile before it takes memory."""
        self._cache = []
        if not self._programs:
            for phase, length in self._spec.step_lengths:
                self._programs[phase] = self._compiled(phase, length)
                self._unchecked.add(phase)
        self._model.begin()
        self._cache = raw(self._model.cache_tensors())
        self._shardings = _shardings(self._cache)
        self._phase = "prefill"

    def forward(self, given: Any) -> list[Any]:
        """Start the prefill or, after it, a decode step, and return its results, as the model's `step` does."""
        inputs = [*raw([given]), *self._cache]
        results = self._programs[self._phase].run(inputs)
        cache, results = results[: len(self._cache)], results[len(self._cache) :]
        if self._phase in self._unchecked:
            self._require_same_shardings(cache)
            self._unchecked.remove(self._phase)
        self._cache, self._phase = cache, "decode"
        return results

    def _require_same_shardings(self, cache: list[Any]) -> None:
        """Make sure that the cache is split as before; a program that runs by its hash does not check this."""
        pairs = zip(_shardings(cache), self._shardings, strict=True)
        if wrong := [number for number, (behind, before) in enumerate(pairs) if behind != before]:
            raise CheckError(f"tensors {wrong} of the cache are split differently after the {self._phase} than before")

    def lowered(self, phase: str, length: int) -> str:
        """Return the program of a step as the HLO text that the compiler would get; nothing is compiled."""
        with self._traced(phase, length) as traced:
            text = torch_xla._XLAC._get_xla_tensors_hlo(traced.outputs)
        # The program's name, the donated arguments and the count of devices are not in the text; when torch_xla
        # compiles, it adds them.
        head, body = text.split("\n", 1)
        layout = head.partition(", ")[2]
        donors = ", ".join(f"({number}, {{}})" for number, place in enumerate(traced.places) if place)
        stated = f"buffer_donor={{ {donors} }}, {layout}, num_partitions={self._spec.mesh.size}"
        return f"HloModule {phase}, {stated}\n{body}"

    def _compiled(self, phase: str, length: int) -> Program:
        with self._traced(phase, length) as traced, alias_with_buffer_donor_config():
            graph = torch_xla._XLAC._get_graph_hash(traced.outputs)
            torch_xla._XLAC._xla_warm_up_cache(traced.outputs, [])
        constants = [v if p is None else None for p, v in zip(traced.places, traced.values, strict=True)]
        return Program(graph, traced.places, constants, len(traced.outputs))

    @contextmanager
    def _traced(self, phase: str, length: int) -> Iterator[_Traced]:
        """Trace a step on an input and a cache of its own, which are empty and dropped afterwards."""
        xla = torch_xla._XLAC
        self._model.begin()
        inputs = raw([self._model.blank_input(length), *self._model.cache_tensors()])
        # Pending computations would become a part of the step, and be cleared with it below.
        torch_xla.sync(reset_scope=False)
        xm.wait_device_ops()
        places = {xla._xla_get_tensor_id(tensor): place for place, tensor in enumerate(inputs)}
        for tensor in inputs[1:]:
            xla._set_buffer_donation(tensor, True)
        with graph_name(phase), torch.no_grad():
            results = self._model.step(inputs[0])
            outputs = raw([*self._model.cache_tensors(), *results])
            ids, values = xla._get_tensors_xla_device_data_node(outputs)
            positions = [places.get(tensor_id) for tensor_id in ids]
            if missing := set(places.values()) - set(positions):
                raise CheckError(f"the traced {phase} does not read its inputs {sorted(missing)} of {len(inputs)}")
            yield _Traced(outputs, positions, values)
            xla._clear_pending_irs(str(torch_xla.device()))


def raw(tensors: list[Any]) -> list[Any]:
    """Return the tensors themselves, unwrapped where torch_xla wrapped them with their sharding."""
    return [unwrap_sharded_tensor(tensor) for tensor in tensors]


def _shardings(tensors: list[Any]) -> list[str]:
    return [spec or _WHOLE for spec in torch_xla._XLAC._get_xla_sharding_specs(tensors)]


def wait_for_devices(value: Any) -> None:
    """Wait until all devices have a result of the last program.

    `wait_device_ops` alone waits for the first device; copying every device's shard waits for all, and adds no program
    of its own. For virtual devices, also wait until their threads sleep.
    """
    xm.wait_device_ops()
    torch_xla._XLAC._get_local_shards([unwrap_sharded_tensor(value)])
    if runtime.device_type() == "CPU":
        wait_until_asleep()


@contextmanager
def graph_name(name: str) -> Iterator[None]:
    """Name the programs that are compiled inside; the profiler shows the name with every execution."""
    torch_xla._XLAC._set_current_graph_name(name)
    try:
        yield
    finally:
        torch_xla._XLAC._set_current_graph_name("")
