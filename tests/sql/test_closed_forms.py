"""Traffic of real captures against what their parallelism must send, worked out from the model's configuration alone.

Bytes per device and step, for a batch b on the device, prompt S (1 in decode), width H and elements of four bytes:

tp   two all-reduces of b S H per layer
ep   two all-to-alls per layer of experts, dispatch and combine, of as many places as docs/parallelism.md says
sp   in prefill a reduce-scatter and an all-gather in place of each all-reduce of tp
pp   M + P - 2 permutes of a microbatch's activations b/M S H, an all-reduce of the result b H, the work of tp in each
     of M + P - 1 ticks
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tracewarehouse.warehouse import Warehouse

DATA = Path(__file__).parents[2] / "data" / "captures"
FLOAT = 4


@dataclass(frozen=True)
class Workload:
    """What ran: lengths, the model's shape and the mesh; one program for all stages of a pipeline."""

    batch: int
    prompt: int
    layers: int
    hidden: int
    expert_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    capacity_factor: float | None = None
    """Room of the experts, infinite for all tokens; without it every token goes to every expert, as in the recordings
    beside the repository."""
    pp: int = 1
    dp: int = 1
    ep: int = 1
    tp: int = 1
    microbatches: int = 1
    is_sequence_parallel: bool = False
    is_result_permuted: bool = False
    """Whether the last stage's result also goes to the first, as in the recording beside the repository."""

    @property
    def sequences(self) -> int:
        """Sequences on a device."""
        return self.batch // (self.dp * self.ep)

    def _exchanged(self, tokens: int) -> float:
        """Elements that a layer of experts sends for so many tokens of a device, there and back."""
        if self.capacity_factor is None:
            return 2 * self.experts * tokens * self.hidden
        places = tokens
        if not math.isinf(self.capacity_factor):
            places = min(tokens, max(4, math.ceil(self.capacity_factor * tokens * self.experts_per_token / self.ep)))
        return self.ep * places * ((self.hidden + self.experts / self.ep) + (self.hidden + 1))

    def expected(self, phase: str) -> dict[tuple[str, str], float]:
        """Message bytes of a device in one step, by kind and axis."""
        length = self.prompt if phase == "prefill" else 1
        activations = self.sequences * length * self.hidden * FLOAT
        last_token = self.sequences * self.hidden * FLOAT
        ticks = self.microbatches + self.pp - 1
        found: dict[tuple[str, str], float] = {}
        if self.tp > 1:
            reduced = 2 * (self.layers // self.pp) * ticks * activations // self.microbatches
            if self.is_sequence_parallel and phase == "prefill":
                found["reduce-scatter", "tp"] = reduced
            else:
                found["all-reduce", "tp"] = reduced
        if self.ep > 1:
            found["all-to-all", "ep"] = self.expert_layers * self._exchanged(self.sequences * length) * FLOAT
        if self.pp > 1:
            # what the last stage makes of the last position goes to all
            found["collective-permute", "pp"] = (ticks - 1) * activations // self.microbatches
            found["collective-permute", "pp"] += last_token * self.is_result_permuted
            found["all-reduce", "pp"] = last_token
        return found


RECORDED = {
    "llama-tp4-b4-i16-o17",
    "llama-tp4-b4-i16-o17-jax",
    "qwen3-dp2tp2-b4-i16-o9",
    "llama-tp4-sp-b4-i16-o9",
    "deepseek_v2-ep4-b4-i16-o9",
    "deepseek_v2-ep4-b4-i16-o9-cfinf",
    "llama-pp2tp2-b4-i16-o5",
}
SHARED = {
    "cpu_llama_tp4": Workload(4, 32, 2, 128, tp=4),
    "cpu_llama_sp_tp4": Workload(4, 32, 2, 128, tp=4, is_sequence_parallel=True),
    "cpu_qwen3_dp2tp2": Workload(4, 32, 2, 128, dp=2, tp=2),
    "cpu_deepseekv2_ep4": Workload(4, 16, 3, 128, expert_layers=2, experts=8, ep=4),
    "cpu_deepseekv3_dp2ep2tp2": Workload(8, 16, 3, 128, expert_layers=2, experts=8, dp=2, ep=2, tp=2),
    "cpu_llama_pp2tp2": Workload(8, 16, 4, 128, pp=2, tp=2, microbatches=2, is_result_permuted=True),
}
"""How the captures beside the repository were recorded; these have no manifest."""


def _recorded() -> dict[str, Workload]:
    found = {}
    for path in sorted(DATA.glob("*/manifest.json")):
        name = path.parent.name
        if "hosts" in name:
            continue
        m = json.loads(path.read_text())
        model, axes = m["model"], m["mesh"]["axes"]
        experts = model["num_experts"] or 0
        found[name] = Workload(
            m["batch_size"],
            m["input_length"],
            model["num_layers"],
            model["hidden_size"],
            expert_layers=model["num_layers"] - 1 if experts else 0,  # DeepSeek's first layer is dense
            experts=experts,
            experts_per_token=2 if experts else 0,  # as all tiny models have
            capacity_factor=float(m["capacity_factor"]) if experts else None,
            **{axis: axes.get(axis, 1) for axis in ("pp", "dp", "ep", "tp")},
            microbatches=m["microbatches"] or 1,
            is_sequence_parallel=m["sequence_parallelism"] == "megatron",
        )
    return found


WORKLOADS = _recorded() | SHARED


@pytest.fixture
def run_of(all_captures: Warehouse, request: pytest.FixtureRequest) -> Any:
    """The rows of a view for a capture."""

    def rows(capture: str, view: str) -> list[dict[str, Any]]:
        warehouse = request.getfixturevalue("shared_captures") if capture in SHARED else all_captures
        run_id = warehouse.run(capture).run_id
        found: list[dict[str, Any]] = warehouse.query(f"SELECT * FROM {view} WHERE run_id = $run", run=run_id).dicts()
        return found

    return rows


def test_every_recorded_parallelism_is_here() -> None:
    assert set(_recorded()) == RECORDED
    assert {w.capacity_factor for w in _recorded().values() if w.experts} == {1.25, math.inf}
    assert {a for w in _recorded().values() for a in ("pp", "dp", "ep", "tp") if getattr(w, a) > 1} == {
        "pp", "dp", "ep", "tp"
    }  # fmt: skip


@pytest.mark.parametrize("capture", WORKLOADS)
def test_message_bytes_are_those_of_the_parallelism(run_of: Any, capture: str) -> None:
    rows = run_of(capture, "metrics.traffic_volume")
    for phase in ("prefill", "decode"):
        found = {(r["kind"], r["axis"]): r["message_bytes_per_step"] for r in rows if r["phase"] == phase}
        expected = WORKLOADS[capture].expected(phase)
        if WORKLOADS[capture].is_sequence_parallel:
            found.pop(("all-reduce", "tp"), None) if phase == "prefill" else None
        assert {k: found[k] for k in expected} == expected
        assert not [axis for _, axis in found if axis == "dp"]  # inference sends nothing over dp


@pytest.mark.parametrize(
    ("split", "whole"), [("llama-tp4-sp-b4-i16-o9", "llama-tp4-b4-i16-o17"), ("cpu_llama_sp_tp4", "cpu_llama_tp4")]
)
def test_gather_and_scatter_are_the_all_reduces_they_replace(run_of: Any, split: str, whole: str) -> None:
    def wire(capture: str, kind: str, message_bytes: int) -> int:
        rows = run_of(capture, "main.collectives")
        return sum(
            r["wire_bytes"]
            for r in rows
            if (r["phase"], r["kind"], r["message_bytes"], r["device_id"]) == ("prefill", kind, message_bytes, 0)
        )

    w = WORKLOADS[whole]
    size = w.sequences * w.prompt * w.hidden * FLOAT
    replaced = wire(whole, "all-reduce", size)
    scattered = wire(split, "reduce-scatter", size)
    assert scattered == replaced // 2 == 2 * w.layers * size * (w.tp - 1) // w.tp
    # the recording beside the repository gathers once more, the input of its head
    gathers = 2 * w.layers + (split in SHARED)
    assert wire(split, "all-gather", size) == gathers * size * (w.tp - 1) // w.tp


def test_a_pipeline_over_hosts_reduces_within_its_stages_alone(run_of: Any) -> None:
    """Two stages of one layer, a process each, so that boundaries cross on the hosts and no program has a pp axis."""
    rows = run_of("llama-pp2tp2-b4-i16-o5-hosts2", "metrics.traffic_volume")
    assert {r["axis"] for r in rows} == {"tp"}
    reduced = {r["phase"]: r["message_bytes_per_step"] for r in rows if r["kind"] == "all-reduce"}
    assert reduced == {"prefill": 2 * 4 * 16 * 128 * FLOAT, "decode": 2 * 4 * 128 * FLOAT}
