"""Runs a pipeline over hosts: a process for each stage, with an SPMD program over devices of its own.

Virtual CPU devices of different processes cannot communicate, so torch.distributed (gloo) carries activations and
tokens from host to host between the programs: there is no collective over pp. Every process records its own profile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch_xla

from tracewarehouse.collect.harness.subject import Subject
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.torch_xla.mesh import DeviceMesh
from tracewarehouse.collect.torch_xla.operations import scope
from tracewarehouse.collect.torch_xla.replay import ReplayedModel, wait_for_devices
from tracewarehouse.collect.torch_xla.sharded_model import ShardedModel
from tracewarehouse.collect.torch_xla.stack import TorchXlaStack
from tracewarehouse.collect.torch_xla.transformers_model import on_host
from tracewarehouse.ingest.capture.manifest import Mesh


def stage_spec(spec: RunSpec, stage: int) -> RunSpec:
    """Return the run as one stage sees it: its own layers, on the devices of its host."""
    axes = {a: n for a, n in spec.mesh.axes.items() if a != "pp"}
    own = spec.stage_layout.stages[stage]
    layers = own.last_layer - own.first_layer + 1
    return spec.model_copy(update={"mesh": Mesh(axes=axes or {"tp": 1}), "layers": layers, "hosts": 1})


class StageStack(TorchXlaStack):
    """The devices of one stage; results are those of all stages, which find each other by a file."""

    def __init__(self, spec: RunSpec, stage: int, rendezvous: Path) -> None:
        init = f"file://{rendezvous}"  # the processes connect over the loopback interface
        dist.init_process_group("gloo", init_method=init, rank=stage, world_size=spec.hosts)
        super().__init__(stage_spec(spec, stage))
        self._stage = stage

    def model(self, subject: Subject) -> Any:
        """Bring the layers of this stage to its devices."""
        return StageModel(subject.spec, on_host(subject.spec, subject.weights), self.mesh, self._stage)

    def on_host(self, value: Any) -> Any:
        """Return the sum over the stages in numpy; logits are zeros on all but the last."""
        return _summed(torch.from_numpy(super().on_host(value))).numpy()

    def total(self, count: int) -> int:
        """Sum a number over all stages."""
        return int(_summed(torch.tensor(count)))

    def wait_for_all(self) -> None:
        """Wait for the other stages."""
        dist.barrier()


def _summed(value: Any) -> Any:
    """Sum a host tensor over all processes."""
    dist.all_reduce(value)
    return value


class StageLayers(ShardedModel):
    """The layers of one stage; embeddings are on the first, norm and head on the last."""

    def __init__(self, spec: RunSpec, model: Any, mesh: DeviceMesh, stage: int) -> None:
        self._is_first, self._is_last = stage == 0, stage == spec.hosts - 1
        own = stage_spec(spec, stage)
        first = spec.stage_layout.stages[stage].first_layer
        layers = model.model.layers[first : first + own.layers]
        for number, layer in enumerate(layers):
            layer.self_attn.layer_idx = number
        model.model.layers = torch.nn.ModuleList(layers)
        model.config.num_hidden_layers = own.layers
        if not self._is_last:
            model.model.norm = torch.nn.Identity()
        super().__init__(own, model, mesh, first_layer=first)

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model knows."""
        return int(self._model.config.vocab_size)

    def blank_hidden(self, length: int) -> Any:
        """Return blank hidden states [batch, length, width] on the host."""
        return torch.zeros(self._spec.batch, length, self._model.config.hidden_size, dtype=self._model.dtype)

    def place_hidden(self, hidden: Any) -> Any:
        """Bring hidden states to the devices, whole on each."""
        return self._mesh.place(hidden, (None, None, None))

    def blank_input(self, length: int) -> Any:
        """Return blank tokens [batch, length] on the first stage, else hidden states [batch, length, width]."""
        return super().blank_input(length) if self._is_first else self.place_hidden(self.blank_hidden(length))

    def step(self, given: Any) -> tuple[Any, ...]:
        """Return hidden states [batch, length, width], or on the last stage the results of `DeviceModel.forward`.

        On every stage with experts, the pairs that they dropped follow.
        """
        inputs = {"input_ids" if self._is_first else "inputs_embeds": given}
        hidden = self._model.model(past_key_values=self._cache, use_cache=True, **inputs).last_hidden_state
        if not self._is_last:
            return self._mesh.constrain(hidden, (None, None, None)), *self._dropped()
        logits = self._model.lm_head(hidden[:, -1:])[:, -1]
        with scope("lm_head"):
            following = self._mesh.constrain(logits.argmax(-1, keepdim=True), (None, None))
        return logits, following, *self._dropped()


class StageModel:
    """One stage and its exchange with the others: it passes hidden states on, and tokens go to all."""

    def __init__(self, spec: RunSpec, model: Any, mesh: DeviceMesh, stage: int) -> None:
        self._stage, self._hosts, self._mesh = stage, spec.hosts, mesh
        self._is_last, self._has_experts = stage == spec.hosts - 1, spec.capacity_factor is not None
        self._layers = StageLayers(spec, model, mesh, stage)
        self._replayed = ReplayedModel(stage_spec(spec, stage), self._layers)

    def begin(self) -> None:
        """Start a new generation with an empty cache."""
        self._replayed.begin()

    def forward(self, tokens: Any) -> tuple[Any, ...]:
        """See `DeviceModel.forward`; only the last stage has logits, the others zeros; dropped pairs are of this stage.

        The prompt must be on all stages; all stages get the tokens of a step.
        """
        trace_me = torch_xla._XLAC.profiler.TraceMe
        batch, count = tokens.shape
        given = tokens
        if self._stage:
            hidden = self._layers.blank_hidden(count)
            with trace_me("pp_recv", source=self._stage - 1, bytes=hidden.nbytes):
                dist.recv(hidden, self._stage - 1)
            given = self._layers.place_hidden(hidden)
        result, *dropped = self._replayed.forward(given)
        if self._has_experts and not (dropped or self._is_last):  # a stage of dense layers
            dropped = [torch.zeros(1, batch, dtype=torch.int32)]
        if self._is_last:
            logits, (on_devices, *dropped) = result, dropped
            wait_for_devices(on_devices)
            following = on_devices.cpu()
        else:
            wait_for_devices(result)
            out = result.cpu().contiguous()
            with trace_me("pp_send", target=self._stage + 1, bytes=out.nbytes):
                dist.send(out, self._stage + 1)
            logits = torch.zeros(batch, self._layers.vocabulary, dtype=out.dtype)
            following = torch.zeros(batch, 1, dtype=torch.long)
        with trace_me("pp_tokens", source=self._hosts - 1, bytes=following.nbytes):
            dist.broadcast(following, self._hosts - 1)
        return logits, self._mesh.place(following, (None, None)), *dropped
