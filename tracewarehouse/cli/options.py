"""Defines the options and arguments that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tracewarehouse.cli import completion
from tracewarehouse.queries.output import Format

FormatOption = Annotated[
    Format | None, typer.Option("--format", help="Default: table, or the format that the ending of -o names.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")
]


class Engine(StrEnum):
    """The engine that runs SQL and ingest."""

    DUCKDB = "duckdb"
    SPARK = "spark"


EngineOption = Annotated[
    Engine, typer.Option(help="The engine that does the work: DuckDB in this process, or Apache Spark (see --master).")
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        envvar="SPARK_MASTER",
        metavar="URL",
        help="Where Spark runs, such as spark://HOST:7077 or sc://HOST:15002; by default on this machine.",
        show_default=False,
    ),
]


def _separate(names: list[str] | None) -> list[str] | None:
    return [n for text in names for n in text.split(",") if n] if names else names


MetricsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        "-m",
        metavar="NAME,...",
        help="Only these metrics. You can repeat the option.",
        callback=_separate,
        autocompletion=completion.metrics,
    ),
]
RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Run ids, beginnings of ids, names, or patterns of names such as 'llama-*'; default: all runs.",
        autocompletion=completion.runs,
    ),
]

# options of `tw collect` and `tw plan`: the fields of a run
SequenceParallelismOption = Annotated[
    str | None, typer.Option("--sequence-parallelism", help="Split the sequence over tp: megatron, ulysses, ring.")
]
MicrobatchesOption = Annotated[int | None, typer.Option(help="Microbatches of the pipeline.")]
BatchOption = Annotated[int | None, typer.Option(help="Sequences in the batch.")]
InputLengthOption = Annotated[int | None, typer.Option(help="Tokens of each prompt.")]
OutputLengthOption = Annotated[int | None, typer.Option(help="Tokens to generate per sequence.")]
LayersOption = Annotated[int | None, typer.Option(help="Decoder layers.")]
CapacityFactorOption = Annotated[
    str | None,
    typer.Option(help="Tokens that an expert has room for, as a multiple of its mean share; inf drops none."),
]
BackendOption = Annotated[
    str | None, typer.Option(help="The backend that runs the model: torch_xla, jax, or module:Class of another.")
]

# an option of `tw collect` and `tw tpu`
CapturesOption = Annotated[
    Path, typer.Option("--output", "-o", help="Folder for the capture directories, one per run.")
]

# options and arguments of the verbs of `tw tpu`
SliceArgument = Annotated[str, typer.Argument(help="Name of the slice.")]
ExperimentArgument = Annotated[
    Path,
    typer.Argument(metavar="EXPERIMENT", help="Experiment file, or the name of a ready-made one, such as tpu_v6e."),
]
GenerationOption = Annotated[str, typer.Option("--generation", "-g", help="v4, v5e or v6e.")]
ZoneOption = Annotated[str | None, typer.Option(help="Zone; by default the first whose quota has the chips.")]
SpotOption = Annotated[bool | None, typer.Option("--spot/--on-demand", help="Only spot, or only on demand.")]
ProjectOption = Annotated[str | None, typer.Option(help="Google Cloud project; by default that of gcloud.")]
NetworkOption = Annotated[str | None, typer.Option(help="VPC network; by default the project's default one.")]
SubnetworkOption = Annotated[str | None, typer.Option(help="Subnetwork of the network, in the zone's region.")]
DataDiskOption = Annotated[
    str | None, typer.Option(help="Disk of the zone for weights; several hosts share one that they can only read.")
]
BucketOption = Annotated[
    str | None, typer.Option(help="Cloud Storage bucket that holds the weights in its folder hub.")
]
ServiceAccountOption = Annotated[str | None, typer.Option(help="Service account of the hosts, as an e-mail address.")]
QuotaOption = Annotated[Path | None, typer.Option("--quota", help="Quota table in place of the built-in one.")]
StateOption = Annotated[Path, typer.Option("--state", help="Record of the slices that were created.")]
BackoffOption = Annotated[
    float, typer.Option("--backoff", min=0.0, help="Seconds before the second attempt; then doubled.")
]
