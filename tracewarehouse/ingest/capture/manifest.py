"""Reads manifest.json of a capture directory, which says what the collector ran."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tracewarehouse.ingest.capture_names import AXES
from tracewarehouse.ingest.errors import CaptureError, found_instead, shown

MAX_DEVICES = 1 << 17
"""Most devices of a mesh; more are a mistake and must not cost memory."""
MAX_BYTES = 64 << 20

Int32 = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]
Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
"""Integers that fit into their columns."""
Layer = Annotated[int, Field(ge=0, lt=1 << 20)]


class Mesh(BaseModel):
    """Logical device mesh: named axes and the devices laid out over them, row-major."""

    model_config = ConfigDict(extra="forbid")

    axes: dict[str, int] = Field(description="axis name to size, outermost first")
    device_ids: list[int] | None = Field(default=None, description="row-major device ids; 0, 1, 2, ... when absent")

    @model_validator(mode="after")
    def _check(self) -> Mesh:
        unknown = [a for a in self.axes if a not in AXES]
        if unknown:
            raise ValueError(f"unknown mesh axis {shown(', '.join(unknown))}; known are {', '.join(AXES)}")
        if any(n < 1 for n in self.axes.values()):
            raise ValueError("a mesh axis has a size below 1")
        if any(n > MAX_DEVICES for n in self.axes.values()) or self.size > MAX_DEVICES:
            raise ValueError(f"a mesh has at most {MAX_DEVICES} devices")
        if self.device_ids is not None and sorted(self.device_ids) != list(range(self.size)):
            raise ValueError(f"device_ids must be a permutation of 0..{self.size - 1}")
        return self

    @property
    def size(self) -> int:
        """Number of devices."""
        n = 1
        for s in self.axes.values():
            n *= s
        return n

    def coordinates(self, device_ids: Sequence[int] | None = None) -> dict[int, dict[str, int]]:
        """Map each device id to its coordinate on every axis; `device_ids` are taken if the mesh has none."""
        out = {}
        for position, device in enumerate(self.device_ids or device_ids or range(self.size)):
            rest, coordinate = position, {}
            for axis in reversed(self.axes):
                rest, coordinate[axis] = divmod(rest, self.axes[axis])
            out[device] = {axis: coordinate[axis] for axis in self.axes}
        return out

    def strides(self) -> dict[str, int]:
        """Map each axis to the distance in position between neighbours on it."""
        out, stride = {}, 1
        for axis in reversed(self.axes):
            out[axis] = stride
            stride *= self.axes[axis]
        return out

    def __str__(self) -> str:
        return ",".join(f"{a}={n}" for a, n in self.axes.items() if n > 1) or "single"

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Read the form 'dp=2,tp=4', outermost axis first.

        Raises:
            ValueError: not of that form, or no such mesh; one sentence.
        """
        axes: dict[str, int] = {}
        mesh = f"mesh {shown(text)!r}"
        for item in text.split(","):
            name, _, size = item.strip().partition("=")
            if not size.strip().isdecimal():
                raise ValueError(f"{mesh}: expected axis=size pairs such as dp=2,tp=4, found {shown(item)!r}")
            if name.strip() in axes:
                raise ValueError(f"{mesh}: axis {shown(name)} is given twice")
            axes[name.strip()] = int(size)
        try:
            return cls(axes=axes)
        except ValidationError as error:  # its own text has four lines
            raise ValueError(f"{mesh}: {error.errors()[0]['ctx']['error']}") from None


class PhaseMark(BaseModel):
    """One step on the host's clock, as the collector measured it."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="prefill or decode")
    step: Int32 = Field(description="0 for prefill, decode steps from 1")
    start_ns: Int64 = Field(description="Unix time")
    end_ns: Int64 = Field(description="Unix time; the step's token is on the host")


class PromisedCollective(BaseModel):
    """Collectives that the parallelism must cause: at least `count` in every step of the phase on every device."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    phase: str = Field(description="prefill or decode")
    kind: str = Field(description="all-reduce, all-gather, reduce-scatter, all-to-all or collective-permute")
    axis: str = Field(description="mesh axis that its replica groups run along")
    stage: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="only on the devices of this stage of pp; on all devices when absent"
    )
    count: Int64 = Field(ge=1, description="per step and device; the compiler may add more")


class PipelineStage(BaseModel):
    """A stage of a pipeline: the layers that it holds, and their place in the program that all stages share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first_layer: Layer = Field(description="of the whole model, from 0")
    last_layer: Layer
    first_slot: Layer = Field(
        description="number that the program gives to the first layer: its N in the scope local_layerN"
    )


class ModelFacts(BaseModel):
    """The model that ran, with the numbers of its configuration."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    name: str
    family: str | None = None
    hf_url: str | None = None
    num_layers: Int32 | None = None
    hidden_size: Int32 | None = None
    num_heads: Int32 | None = None
    num_kv_heads: Int32 | None = None
    head_dim: Int32 | None = None
    vocab_size: Int32 | None = None
    num_experts: Int32 | None = Field(default=None, description="null for a dense model")
    tie_word_embeddings: bool | None = Field(
        default=None, description="the output head is the embedding table; null counts as false"
    )
    num_params: Int64 | None = None
    num_params_active: Int64 | None = None
    num_params_embedding: Int64 | None = None


class Manifest(BaseModel):
    """manifest.json: all facts about a run that the profiler does not know.

    Ingest works without a manifest; each field only adds facts. Fields that this version does not know are kept.
    """

    model_config = ConfigDict(extra="allow")

    manifest_version: Int32 = 1
    name: str = Field(description="short name of the run, for people")
    model: ModelFacts | None = None
    backend: str | None = Field(default="torch_xla", description="what ran the model: torch_xla, jax, vllm, ...")
    dtype: str | None = None
    batch_size: Int32 | None = None
    input_length: Int32 | None = None
    output_length: Int32 | None = Field(
        default=None, description="generated tokens per sequence, the one from prefill included"
    )
    mesh: Mesh | None = None
    sequence_parallelism: str | None = None
    microbatches: Int32 | None = None
    capacity_factor: float | Literal["inf"] | None = Field(
        default=None, description="places of an expert over its mean share of the tokens; inf if none is dropped"
    )
    stages: list[PipelineStage] | None = Field(
        default=None, max_length=1 << 16, description="stages of the pipeline, by their place on pp"
    )
    hosts: list[str] = Field(default_factory=list, description="stems of the capture files, one per host, in order")
    phases: list[PhaseMark] = Field(default_factory=list, max_length=1 << 16)
    promised_collectives: list[PromisedCollective] | None = Field(
        default=None, max_length=256, description="collectives that the capture must show; checked at ingest"
    )
    versions: dict[str, str] = Field(default_factory=dict)
    seed: Int64 | None = None
    checks: dict[str, Any] = Field(default_factory=dict)
    git_commit: str | None = None


def load_manifest(path: Path) -> Manifest:
    """Read and validate a manifest.

    Raises:
        CaptureError: the file is not JSON, or a field is missing or wrong; the message names the field.
    """
    with reading(path, "a manifest", "manifest"):
        tree = json.loads(content_of(path, MAX_BYTES))
        json.dumps(tree, ensure_ascii=False).encode()  # half a surrogate pair has no UTF-8
        return Manifest.model_validate(tree)


@contextmanager
def reading(path: Path, what: str, whole: str, hint: str = "") -> Iterator[None]:
    """Make each error about a file that describes a run one sentence; it calls the file `what`, its root `whole`."""
    where = shown(str(path))
    try:
        yield
    except CaptureError as error:
        raise CaptureError(f"{where}: cannot be read as {what}: {error}") from None
    except ValidationError as error:
        wrong = {_field_name(e["loc"]) or whole: e["msg"] for e in error.errors()}
        found = "; ".join(f"{name}: {message}" for name, message in wrong.items())
        valid = f"a valid {what[2:]}" if what.startswith("a ") else f"valid {what}"
        raise CaptureError(f"{where}: not {valid}: {shown(found)}{hint}") from None
    except RecursionError:
        raise CaptureError(f"{where}: cannot be read as {what}: nested too deeply") from None
    except (OSError, ValueError, TypeError) as error:
        raise CaptureError(f"{where}: cannot be read as {what}: {shown(str(error))}") from None


def content_of(path: Path, most_bytes: int) -> str:
    """Return the text of a small file.

    Raises:
        CaptureError: it is no file, or larger than `most_bytes`.
    """
    if not path.is_file():  # reading a pipe would block
        found = found_instead(path) if path.exists() or path.is_symlink() else "found nothing"
        raise CaptureError(f"expected a file, {found}")
    with path.open("rb") as file:
        raw = file.read(min(path.stat().st_size, most_bytes) + 1)  # a buffer of that size is made at once
    if len(raw) > most_bytes:
        size = f"{most_bytes >> 20} MB" if most_bytes >> 20 else f"{most_bytes >> 10} kB"
        raise CaptureError(f"larger than {size}")
    return raw.decode("utf-8-sig")


def _field_name(location: tuple[int | str, ...]) -> str:
    """Return the dotted path of a field; pydantic appends the tried member of a union, which is no field."""
    parts = [str(p) for p in location]
    while parts and (
        (len(parts) > 1 and parts[-1] in _UNION_MEMBERS) or parts[-1].startswith(("literal[", "function-", "list["))
    ):
        parts.pop()
    return ".".join(parts)


_UNION_MEMBERS = frozenset({"int", "float", "str", "bool", "constrained-str", "dict[str,any]"})
