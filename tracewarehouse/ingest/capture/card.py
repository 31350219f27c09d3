"""Reads and writes card.yaml, the workload card of CCL-Bench (https://github.com/cornell-sysphotonics/ccl-bench)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tracewarehouse.ingest.capture.manifest import Int32, Int64, content_of, reading
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.plain_yaml import yaml_tree

MAX_BYTES = 128 << 10
"""Size limit for a card; real ones have about 2 kB."""
PUBLISHED = "published"
"""Field of a card that `tw import ccl-bench` adds where it has no trace: the published values, by name."""

Blank = Literal[""]
"""Value of a field of the card that is not known."""

_NOT_KNOWN = frozenset(
    {
        "n/a", "na", "n.a.", "not applicable", "not available", "unknown", "not known", "unspecified",
        "tbd", "tba", "tbc", "todo", "to be determined", "nan", "-", "--", "?",
    }
)  # fmt: skip
"""What people write, in any case, for a value that they do not have."""

Text = Annotated[str, Field(coerce_numbers_to_str=True)]
Count = Int32 | Blank
Number = Int64 | Annotated[float, Field(ge=-(2.0**62), le=2.0**62)] | Blank
Flag = bool | Blank


class _Section(BaseModel):
    """A part of the card: missing values, null and N/A become blank; unknown fields are kept."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _unknown_is_blank(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        names = {field.alias or name for name, field in cls.model_fields.items()}
        known = {k: v for k, v in data.items() if v is not None and not (k in names and _is_blank(v))}
        return {
            k: ["" if _is_blank(x) else x for x in v] if k in names and isinstance(v, list) else v
            for k, v in known.items()
        }


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOT_KNOWN)


class ModelArch(_Section):
    """Numbers of the model's configuration."""

    num_params: Number = ""
    num_params_active: Number = ""
    num_params_embedding: Number = ""
    num_layers: Count = ""
    num_heads: Count = ""
    head_dim: Count = ""
    hidden_size: Count = ""
    vocab_size: Count = ""
    tie_word_embeddings: Flag = Field(default="", description="the output head is the embedding table")


class CardModel(_Section):
    """The work that ran, and how often."""

    phase: Text = Field(default="", description="training or inference")
    moe: Flag = ""
    granularity: Text = ""
    model_family: Text = ""
    precision: Text = ""
    epochs: Count = ""
    iteration: Count = Field(default="", description="steps in the trace")
    model_arch: ModelArch = Field(default_factory=ModelArch)


class CardData(_Section):
    """Shape of the input and output."""

    batch_size: Count | list[Count] = Field(default="", description="sequences; a list if the card is of several runs")
    seq_len: Count = ""
    input_len: Count = ""
    output_len: Count = ""
    dataset: Text = ""


class NetworkTopology(_Section):
    """Links between the chips."""

    topology: Text = ""
    bandwidth_gbps: list[Number] | Blank = Field(default="", description="Gbit/s per chip: [scale-out, scale-up]")


class XpuSpec(_Section):
    """The accelerator."""

    type: Text = ""
    model: Text = ""
    total_count: Count = ""
    count_per_node: Count = ""


class CardHardware(_Section):
    """The hardware on which it ran."""

    network_topo: NetworkTopology = Field(default_factory=NetworkTopology)
    xpu_spec: XpuSpec = Field(default_factory=XpuSpec)
    driver_version: Text = ""


class Workload(_Section):
    """Model, data and hardware."""

    model: CardModel = Field(default_factory=CardModel)
    data: CardData = Field(default_factory=CardData)
    hardware: CardHardware = Field(default_factory=CardHardware)


class Framework(_Section):
    """Software that executes the model."""

    name: Text = ""
    compiler_tool_selection: Text = ""


class ParallelizationPlan(_Section):
    """Degree of each kind of parallelism."""

    dp_replicate: Count = ""
    dp_shard: Count = ""
    tp: Count = ""
    pp: Count = ""
    cp: Count = ""
    ep: Count = ""
    pp_mb: Count = Field(default="", description="micro-batch size of the pipeline")


class CommunicationLibrary(_Section):
    """Library that moves the bytes."""

    name: Text = ""
    version: Text = ""
    env: dict[str, Any] | Text = ""


class ModelExecutor(_Section):
    """The execution of the model."""

    framework: Framework = Field(default_factory=Framework)
    model_plan_parallelization: ParallelizationPlan = Field(default_factory=ParallelizationPlan)
    communication_library: CommunicationLibrary = Field(default_factory=CommunicationLibrary)
    protocol_selection: list[str] | Blank = Field(default_factory=list)


class MetricSource(_Section):
    """The kinds of trace that lie beside the card."""

    traces: list[str] | Blank = Field(default_factory=list)
    metrics_specific_trace: list[str] | Blank = Field(default_factory=list)


class WorkloadCard(_Section):
    """A workload card. A value that is not known is the empty string; fields that this model does not name are kept."""

    version: Number | Text = 1
    description: Text = ""
    hf_url: Text = ""
    trace_url: Text = ""
    contributor: Text = ""
    contact: Text = ""
    workload: Workload = Field(default_factory=Workload)
    model_executor: ModelExecutor = Field(default_factory=ModelExecutor, alias="Model-executor")
    metric_source: MetricSource = Field(default_factory=MetricSource)


def load_card(path: Path) -> WorkloadCard:
    """Read and validate a workload card.

    Raises:
        CaptureError: the file cannot be read, is not YAML, or a field has a wrong value; the message names the field.
    """
    with reading(path, "a workload card", "card"):
        data = yaml_tree(content_of(path, MAX_BYTES))
        _check_values(data)
        if not isinstance(data, dict):
            raise CaptureError(f"a workload card is a mapping of fields, found {type(data).__name__}")
        return WorkloadCard.model_validate(data)


def _check_values(tree: Any) -> None:
    """Refuse what a table or JSON cannot hold."""
    left = [tree]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise ValueError("a number of over 64 bits")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError("a number that is not finite")
        elif isinstance(value, str):
            value.encode()


def dump_card(card: WorkloadCard, path: Path) -> None:
    """Write a card as YAML, fields in the order of CCL-Bench's template."""
    text = yaml.safe_dump(card.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True, width=120)
    path.write_text(text, encoding="utf-8")
