"""The readers that are fuzzed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fuzz.card import CardTarget
from fuzz.chrome import ChromeTarget
from fuzz.descriptions import BatchesTarget, CostsTarget, DefinitionsTarget, ExperimentTarget
from fuzz.hlo_proto import HloProtoTarget
from fuzz.hlo_text import HloTextTarget
from fuzz.ingest import ChromeIngestTarget, DividedIngestTarget, IngestTarget
from fuzz.judging import Target
from fuzz.kineto import KinetoTarget
from fuzz.manifest import ManifestTarget
from fuzz.nsys import NsysTarget
from fuzz.query import CommandTarget, QueryTarget
from fuzz.xplane import CountedTarget, XPlaneTarget

_ALL = (
    XPlaneTarget,
    CountedTarget,
    HloTextTarget,
    HloProtoTarget,
    ChromeTarget,
    NsysTarget,
    KinetoTarget,
    CardTarget,
    ManifestTarget,
    BatchesTarget,
    CostsTarget,
    ExperimentTarget,
    DefinitionsTarget,
    QueryTarget,
    CommandTarget,
    IngestTarget,
    DividedIngestTarget,
    ChromeIngestTarget,
)

TARGETS: dict[str, type[Target] | Callable[[Path | None], Target]] = {target.name: target for target in _ALL}
"""By name; each is made with a folder of captures to damage, or None."""

SHARES = {
    "xplane": 0.08,
    "xplane-counted": 0.03,
    "hlo-text": 0.3003,
    "hlo-proto": 0.2,
    "nsys": 0.01,
    "chrome": 0.02,
    "kineto": 0.015,
    "card": 0.02,
    "manifest": 0.16,
    "batches": 0.07,
    "costs": 0.07,
    "experiment": 0.01,
    "definitions": 0.005,
    "query": 0.008,
    "query-command": 0.0005,
    "ingest": 0.0001,
    "ingest-divided": 0.0001,
    "ingest-chrome": 0.001,
}
"""How the inputs are shared out when all targets run: more where they cost less."""
