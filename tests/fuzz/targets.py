"""The readers that are fuzzed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fuzz.card import CardTarget
from fuzz.chrome import ChromeTarget
from fuzz.descriptions import BatchesTarget, CostsTarget, ExperimentTarget
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
    QueryTarget,
    CommandTarget,
    IngestTarget,
    DividedIngestTarget,
    ChromeIngestTarget,
)

TARGETS: dict[str, type[Target] | Callable[[Path | None], Target]] = {target.name: target for target in _ALL}
"""By name; each is made with a folder of captures to damage, or None."""

SHARES = {
    "xplane": 0.1,
    "xplane-counted": 0.0485,
    "hlo-text": 0.3145,
    "hlo-proto": 0.2,
    "nsys": 0.01,
    "chrome": 0.08,
    "kineto": 0.01,
    "card": 0.01,
    "manifest": 0.1,
    "batches": 0.05,
    "costs": 0.05,
    "experiment": 0.005,
    "query": 0.02,
    "query-command": 0.0005,
    "ingest": 0.0005,
    "ingest-divided": 0.0005,
    "ingest-chrome": 0.0005,
}
"""How the inputs are shared out when all targets run: more where they cost less."""
