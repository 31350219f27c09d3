"""One run: a model, a mesh and the lengths; and which layers each stage of its pipeline holds."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tracewarehouse.collect.errors import ExperimentError
from tracewarehouse.collect.models.architectures import ARCHITECTURES, Architecture, model_architecture
from tracewarehouse.ingest.capture.manifest import Mesh, PipelineStage
from tracewarehouse.ingest.capture_names import AXES

_MOST = (1 << 31) - 1
"""Larger numbers do not fit into the columns of a run."""
MESH_AXES = tuple(axis for axis in AXES if axis != "sp")
"""Axes of the device mesh, outermost first. Sequence parallelism is a mode over tp, not an axis."""

DTYPE_OF_DEVICE = {"cpu": "float32", "tpu": "bfloat16"}
"""Dtype in which a run computes by default, by device."""

UNMARKED = "torch_xla"
"""The backend that names and digests of runs leave out: it recorded the captures of data/."""

MICROBENCHMARKS = "microbenchmarks"
"""What a run names in place of a model to run the small programs of `collect.jax.microbenchmarks`."""

CAPACITY_FACTOR = 1.25
"""Room at a device or an expert, in mean shares of the tokens: the middle one of three that the Switch Transformers
paper compares (1, 1.25 and 2; Fedus et al. 2021, arXiv 2101.03961, table 1)."""


def _standard_mesh(value: Any) -> Any:
    """Accept 'dp=2,tp=2' or {'dp': 2, 'tp': 2}; order the axes and leave out those of size 1."""
    if isinstance(value, Mesh):
        mesh = value
    elif isinstance(value, str):
        mesh = Mesh.parse(value)
    elif isinstance(value, dict):
        mesh = Mesh.model_validate(value if "axes" in value else {"axes": value})
    else:
        raise ValueError(f"expected axis=size pairs such as dp=2,tp=4, found {value!r}")  # noqa: TRY004 (pydantic names the field for ValueError)
    if "sp" in mesh.axes:
        raise ValueError("sp is not an axis of its own: write tp=N and sequence_parallelism: megatron")
    axes = {a: mesh.axes[a] for a in MESH_AXES if mesh.axes.get(a, 1) > 1}
    return Mesh(axes=axes or {"tp": 1}, device_ids=mesh.device_ids)


def _capacity(value: Any) -> float | Literal["inf"] | None:
    """Accept a number or inf, in whatever form a command line or a file has it."""
    try:
        factor = None if value is None else float(value)
    except (TypeError, ValueError):
        factor = 0.0
    if factor is not None and not factor >= 1:
        raise ValueError(f"expected a number from 1 on, or inf, found {value!r}")
    return "inf" if factor == float("inf") else factor


def _default_capacity(backend: str | None) -> float | None:
    """Return the capacity factor of a backend's experts when none is given; None if it runs them as servers do."""
    return None if (backend or RunSpec.model_fields["backend"].default) == "jax" else CAPACITY_FACTOR


CapacityField = Annotated[float | Literal["inf"] | None, BeforeValidator(_capacity)]
MeshField = Annotated[Mesh, BeforeValidator(_standard_mesh)]


class RunSpec(BaseModel):
    """One run: a model, a mesh and the lengths. Two equal specifications describe the same capture."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        default="llama",
        description="architecture of a tiny model, a published Hugging Face id, or a local folder; or microbenchmarks",
    )
    mesh: MeshField = Field(default=Mesh(axes={"tp": 4}), description="axes of (pp, dp, ep, tp), such as 'dp=2,tp=2'")
    sequence_parallelism: Literal["megatron", "ulysses", "ring"] | None = Field(
        default=None,
        description="sequence split over tp between blocks (megatron), or in attention too (ulysses, ring)",
    )
    microbatches: int | None = Field(
        default=None, ge=1, le=_MOST, description="microbatches of the pipeline; the number of stages when absent"
    )
    batch: int = Field(default=4, ge=1, le=_MOST, description="sequences")
    input_length: int = Field(default=32, ge=1, le=_MOST, description="tokens of each prompt")
    output_length: int = Field(
        default=17, ge=1, le=_MOST, description="tokens generated per sequence, the one of prefill included"
    )
    layers: int = Field(default=2, ge=1, le=1024, description="decoder layers; by default all of a published model")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="dtype of weights, cache and activations; on tpu bfloat16 when absent"
    )
    capacity_factor: CapacityField = Field(
        default=None,
        description="with experts: room for this many times the mean share of tokens; inf drops none; when absent as "
        "servers run them, without places, and under torch_xla 1.25",
    )
    routing_skew: float | None = Field(
        default=None,
        ge=0,
        description="with experts, under jax: exponent of Zipf's law by which tokens prefer some experts, such as 1; "
        "when absent the router alone chooses",
    )
    seed: int = Field(
        default=0, ge=0, le=_MOST, description="seed of the weights, the prompts and the preferred experts"
    )
    prompt: str | None = Field(
        default=None, min_length=1, description="text for a published model's tokenizer, repeated to input_length"
    )
    repeat: int = Field(default=0, ge=0, le=_MOST, description="number of the repetition")
    hosts: int = Field(
        default=1,
        ge=1,
        le=_MOST,
        description="on cpu: processes, each with its share of the devices and a profile of its own; under torch_xla "
        "each is a pipeline stage",
    )
    device: Literal["cpu", "tpu"] = Field(default="cpu", description="cpu: virtual devices of one machine")
    reference: Literal["compute", "kept", "off"] | None = Field(
        default=None,
        description="unsplit model to compare with: computed once and kept, only if kept from before, or not at all; "
        "by default compute, and on tpu kept",
    )
    backend: str = Field(
        default="jax",
        pattern=r"^[\w.]+(:\w+)?$",
        description="what runs and records: jax, torch_xla, torch_tpu (on TPUs only), or module:Class",
    )

    @model_validator(mode="before")
    @classmethod
    def _other_defaults(cls, data: Any) -> Any:
        """Fill in the fields whose defaults depend on the device, the hosts and the model."""
        if not isinstance(data, dict):
            return data
        model = data.get("model", "llama")
        filled: dict[str, Any] = {"dtype": DTYPE_OF_DEVICE.get(str(data.get("device", "cpu")))}
        if data.get("backend") == "torch_tpu" and data.get("device") is None:
            filled |= {"device": "tpu", "dtype": DTYPE_OF_DEVICE["tpu"]}
        try:
            architecture = model_architecture(model)
        except (ExperimentError, TypeError):
            pass  # the model is refused by _check, with its name
        else:
            filled["layers"] = None if model in ARCHITECTURES else architecture.config["num_hidden_layers"]
            if architecture.is_moe:
                filled["capacity_factor"] = _default_capacity(data.get("backend"))
        return data | {k: v for k, v in filled.items() if v is not None and data.get(k) is None}

    @model_validator(mode="after")
    def _check(self) -> RunSpec:
        if not self.has_model:
            self._check_microbenchmarks()
            return self
        try:
            architecture = model_architecture(self.model)
        except ExperimentError as error:
            raise ValueError(f"model: {error}") from None
        if self.is_published:
            self._check_published(architecture.config)
        elif self.prompt is not None:
            raise ValueError(f"prompt: {self.model} is a tiny model, which has no tokenizer; remove the field")
        pp, dp, ep, tp = (self.axis(a) for a in MESH_AXES)
        if ep > 1 and architecture.num_experts is None:
            moe = ", ".join(n for n, a in ARCHITECTURES.items() if a.is_moe)
            raise ValueError(f"mesh: ep={ep} needs a model with experts ({moe}), {self.model} has none")
        if self.capacity_factor is not None and not architecture.is_moe:
            raise ValueError(f"capacity_factor: {self.model} has no experts; remove the field")
        if self.routing_skew is not None and not (architecture.is_moe and self.backend == "jax"):
            raise ValueError(
                f"routing_skew: needs a model with experts and the jax backend, not {self.model} with {self.backend}"
            )
        _require_divisor("mesh", f"ep={ep}", ep, "experts", architecture.num_experts or ep)
        _require_divisor("mesh", f"tp={tp}", tp, "attention heads", architecture.num_heads)
        self._check_kv_heads(architecture)
        try:
            stage_layout(self.layers, architecture.first_dense_layers, pp)
        except ValueError as error:
            raise ValueError(f"mesh: {error}") from None
        if self.microbatches is not None and pp == 1:
            raise ValueError("microbatches: only a pipeline has microbatches; add pp to the mesh or remove the field")
        if self.hosts > 1:
            self._check_hosts()
        if self.backend == "torch_tpu":
            self._check_torch_tpu(architecture)
        if self.backend == "jax" and self.mesh.device_ids is not None:
            raise ValueError("mesh: with jax the devices are in the order of their ids; remove device_ids")
        count = self.microbatch_count
        _require_divisor("batch", f"{count} microbatches", count, "sequences", self.batch)
        _require_divisor("batch", f"dp x ep = {dp * ep}", dp * ep, "sequences of a microbatch", self.batch // count)
        if self.sequence_parallelism is not None:
            if tp == 1:
                raise ValueError(
                    "sequence_parallelism: needs tp above 1 in the mesh, because it splits the sequence over tp"
                )
            if pp > 1 and not self.has_programs_of_stages and self.sequence_parallelism != "megatron":
                raise ValueError(
                    f"sequence_parallelism: {self.sequence_parallelism} replaces the attention of a whole "
                    f"program, which pp maps over stages; give each a program of its own (backend: torch_xla, hosts: "
                    f"{pp}), or use megatron"
                )
            if self.sequence_parallelism != "megatron" and (architecture.is_moe or architecture.has_latent_cache):
                raise ValueError(
                    f"sequence_parallelism: {self.sequence_parallelism} is for dense models with keys and values per "
                    f"head, which {self.model} is not; use megatron"
                )
            _require_divisor("input_length", f"tp={tp}", tp, "tokens (for sequence_parallelism)", self.input_length)
        return self

    def _check_microbenchmarks(self) -> None:
        if self.backend != "jax":
            raise ValueError(
                f"backend: {MICROBENCHMARKS} are programs of jax, not of {self.backend}; write backend: jax"
            )
        described = {"model", "mesh", "dtype", "repeat", "device", "reference", "backend"}
        for name, field in type(self).model_fields.items():
            if name not in described and getattr(self, name) != field.default:
                raise ValueError(f"{name}: {MICROBENCHMARKS} have none; remove the field")
        if self.mesh.device_ids is not None:
            raise ValueError("mesh: with jax the devices are in the order of their ids; remove device_ids")

    def _check_kv_heads(self, architecture: Architecture) -> None:
        tp, heads = self.axis("tp"), architecture.num_kv_heads
        if self.backend == "torch_xla" and tp > heads and tp % heads == 0:
            raise ValueError(
                f"mesh: tp={tp} needs copies of the {heads} key-value heads, which torch_xla does not make; use jax"
            )
        if heads % tp and tp % heads:
            raise ValueError(f"mesh: tp={tp} neither divides the {heads} key-value heads nor is a multiple of them")

    def _check_hosts(self) -> None:
        if self.device != "cpu":
            raise ValueError("hosts: are those of virtual devices; a TPU slice has its own, so remove the field")
        if self.backend == "jax":
            _require_divisor("hosts", f"{self.hosts}", self.hosts, f"devices of the mesh {self.mesh}", self.mesh.size)
            return
        if self.backend != "torch_xla":
            raise ValueError(f"hosts: jax and torch_xla run several processes, not {self.backend}; remove the field")
        if self.hosts != self.axis("pp"):
            raise ValueError(
                f"hosts: under torch_xla each stage is a host, so {self.hosts} hosts need pp={self.hosts} in the mesh"
            )
        if self.is_published:
            raise ValueError("hosts: a process for each stage is for tiny models; use jax, or remove the field")
        if self.axis("dp") * self.axis("ep") > 1 or self.mesh.device_ids is not None:
            raise ValueError("hosts: only meshes of pp and tp, without device_ids, can be split over hosts")
        if self.microbatches is not None:
            raise ValueError("microbatches: a pipeline over hosts works on the whole batch; remove the field")

    def _check_torch_tpu(self, architecture: Architecture) -> None:
        if self.device != "tpu":
            raise ValueError(
                "device: torch_tpu has no virtual devices and compiles nothing without a TPU; remove the field, or use "
                "backend jax"
            )
        split = [f"{axis}={self.axis(axis)}" for axis in ("pp", "ep") if self.axis(axis) > 1]
        if architecture.is_moe or architecture.has_latent_cache or self.sequence_parallelism or split:
            found = ", ".join([self.model, *split, *filter(None, [self.sequence_parallelism])])
            raise ValueError(
                f"backend: torch_tpu runs dense models with keys and values per head over dp and tp, not {found}; "
                "use jax"
            )
        if self.mesh.device_ids is not None:
            raise ValueError("mesh: with torch_tpu the devices are in the order of the processes; remove device_ids")

    def _check_published(self, config: dict[str, Any]) -> None:
        if self.layers > config["num_hidden_layers"]:
            raise ValueError(f"layers: {self.model} has {config['num_hidden_layers']}, not {self.layers}")
        if self.sequence_parallelism not in (None, "megatron") and self.backend == "torch_xla":
            raise ValueError(
                f"sequence_parallelism: torch_xla runs {self.sequence_parallelism} with tiny models only; use jax, or "
                "megatron"
            )

    def axis(self, name: str) -> int:
        """Return the size of a mesh axis; 1 when the mesh does not name it."""
        return self.mesh.axes.get(name, 1)

    @property
    def has_programs_of_stages(self) -> bool:
        """Whether each stage of the pipeline is a program of its own, on a host of its own."""
        return self.hosts > 1 and self.backend == "torch_xla"

    @property
    def kv_copies(self) -> int:
        """Copies of each key-value head, so that every device of tp has one where there are more devices than heads."""
        architecture = model_architecture(self.model)
        return 1 if architecture.has_latent_cache else max(1, self.axis("tp") // architecture.num_kv_heads)

    @property
    def has_model(self) -> bool:
        """Whether a model generates tokens; without one, microbenchmarks run."""
        return self.model != MICROBENCHMARKS

    @property
    def is_published(self) -> bool:
        """Whether the weights are published ones, not the random ones of a tiny model."""
        return self.has_model and self.model not in ARCHITECTURES

    @property
    def precision(self) -> Literal["float32", "bfloat16"]:
        """Precision of products on the devices; a TPU's matrix unit multiplies float32 as bfloat16 by default."""
        return "bfloat16" if self.device == "tpu" else self.dtype

    @property
    def reference_mode(self) -> Literal["compute", "kept", "off"]:
        """The allowed source of the reference; a TPU slice does not wait for its host to compute one.

        There is none of a skewed routing, which the model does not have.
        """
        if self.routing_skew is not None:
            return "off"
        return self.reference or ("kept" if self.device == "tpu" else "compute")

    @property
    def microbatch_count(self) -> int:
        """Microbatches of the pipeline; 1 without one."""
        return 1 if self.has_programs_of_stages else self.microbatches or self.axis("pp")

    @property
    def step_lengths(self) -> tuple[tuple[str, int], ...]:
        """The kinds of steps that the run has, with the positions of a sequence in each."""
        return (("prefill", self.input_length), ("decode", 1))[: self.output_length]

    @property
    def stage_layout(self) -> StageLayout:
        """The layers of each pipeline stage; one stage without a pipeline."""
        return stage_layout(self.layers, model_architecture(self.model).first_dense_layers, self.axis("pp"))

    @property
    def name(self) -> str:
        """Name of the capture directory: every value in which two runs may differ, without defaults."""
        parts = [self.folder.parent.name, self.folder.name]
        parts += [f"mb{self.microbatches}"] if self.microbatches and self.microbatches != self.axis("pp") else []
        parts += [f"b{self.batch}", f"i{self.input_length}", f"o{self.output_length}"] if self.has_model else []
        usual = _default_capacity(self.backend)
        for tag, value, default in (
            ("l", self.layers, 2),
            ("", self.dtype, DTYPE_OF_DEVICE[self.device]),
            ("cf", self.capacity_factor or usual, usual),
            ("zipf", self.routing_skew, None),
            ("hosts", self.hosts, 1),
            ("seed", self.seed, 0),
            ("r", self.repeat, 0),
            ("", self.device, "cpu"),
        ):
            parts += [f"{tag}{value}"] if value != default or (tag == "l" and self.is_published) else []
        if self.backend != UNMARKED:
            parts.append(re.sub(r"\W", "-", self.backend))
        if self.prompt is not None:
            parts.append("prompt" + hashlib.sha256(self.prompt.encode()).hexdigest()[:6])
        if self.mesh.device_ids is not None:
            parts.append("ids" + self.digest[:6])
        return "-".join(parts)

    @property
    def folder(self) -> Path:
        """Model and parallelism, such as Qwen3-32B/tp8-sp: the folder of its capture, where these are sorted so."""
        mesh = "".join(f"{a}{n}" for a, n in self.mesh.axes.items() if n > 1) or "single"
        mode = {None: "", "megatron": "-sp"}.get(self.sequence_parallelism, f"-{self.sequence_parallelism}")
        return Path(re.sub(r"[^\w.-]", "-", Path(self.model).name, flags=re.ASCII)) / f"{mesh}{mode}"

    @property
    def digest(self) -> str:
        """SHA-256 of the specification, which a resumed collector compares."""
        # These fields are left out at their defaults: captures from before they existed keep their digest.
        defaults = {
            name
            for name in ("hosts", "prompt", "capacity_factor", "routing_skew")
            if getattr(self, name) == RunSpec.model_fields[name].default
        } | ({"backend"} if self.backend == UNMARKED else set())
        values = self.model_dump(mode="json", exclude=defaults | {"reference"})  # which does not change the capture
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _require_divisor(field: str, divisor_name: str, divisor: int, what: str, count: int) -> None:
    if count % divisor:
        raise ValueError(f"{field}: {divisor_name} does not divide the {count} {what}")


@dataclass(frozen=True)
class StageLayout:
    """The stages of a pipeline, whose layers go through the slots of one program.

    A slot runs one kind of layer on all stages at once. A stage without a layer in a slot passes its hidden states
    through; its devices compute all the same, on zeros, because there is only one program.
    """

    stages: tuple[PipelineStage, ...]
    slots: int

    def slot_layers(self, slot: int) -> list[int | None]:
        """Return the layer that each stage has in a slot; None if it has none."""
        return [
            stage.first_layer + slot - stage.first_slot
            if 0 <= slot - stage.first_slot <= stage.last_layer - stage.first_layer
            else None
            for stage in self.stages
        ]

    def layer_kinds(self) -> list[int]:
        """Return, for each slot, the number of a layer of its kind."""
        return [next(n for n in self.slot_layers(slot) if n is not None) for slot in range(self.slots)]


def stage_layout(layers: int, dense: int, stages: int) -> StageLayout:
    """Share layers among stages.

    The first `dense` layers of a model of experts are the first stage's, in slots of their own. The layers after them,
    which cost the most, are spread as evenly as possible; the remainder goes to the last stages.
    """
    dense = dense if dense < layers else 0
    least, more = divmod(layers - dense, stages)
    counts = [least + (stage >= stages - more) for stage in range(stages)]
    if counts[0] + dense == 0 or 0 in counts[1:]:
        kinds = f"{dense} dense layers, which are the first stage's, and {layers - dense} of experts"
        raise ValueError(f"pp={stages} has more stages than there are layers: {kinds if dense else layers}")
    out = [PipelineStage(first_layer=0, last_layer=dense + counts[0] - 1, first_slot=0)]
    for count in counts[1:]:
        first = out[-1].last_layer + 1
        out.append(PipelineStage(first_layer=first, last_layer=first + count - 1, first_slot=dense))
    return StageLayout(tuple(out), dense + max(counts))
