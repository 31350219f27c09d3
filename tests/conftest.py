"""Fixtures shared by all tests."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tracewarehouse.queries.memory_limit import VARIABLE

if TYPE_CHECKING:
    from tracewarehouse.database.session import Session
    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.evaluation.fsck import Problem
    from tracewarehouse.ingest.lake.lake import Lake
    from tracewarehouse.ingest.lake.manifest import RunVersion
    from tracewarehouse.queries.result import QueryResult
    from tracewarehouse.queries.tables_read import ParsedSql
    from tracewarehouse.warehouse import Warehouse

ROOT = Path(__file__).resolve().parent.parent

hypothesis.settings.register_profile("any machine", deadline=None, max_examples=50)  # a slow one must pass
hypothesis.settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that writes golden values anew."""
    parser.addoption("--update-golden", action="store_true", help="write golden values anew; review the difference")


@pytest.fixture(autouse=True)
def memory_limit_of_the_caller() -> Iterator[None]:
    """Take back the memory limit that a command or server set for its process, which is that of the tests here."""
    before = os.environ.get(VARIABLE)
    yield
    if before is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = before


def pytest_configure() -> None:
    """Take interrupts again, which a script's background job or `nohup` ignores, as would what the tests interrupt."""
    for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, action)


@pytest.fixture(autouse=True, scope="session")
def evaluated_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Evaluate and audit a run once by the same definitions, whichever process does: hundreds ingest the same."""
    from tracewarehouse.evaluation import fsck
    from tracewarehouse.evaluation.evaluator import Evaluator

    evaluate, audits = Evaluator.__call__, fsck._audits
    kept = partial(_kept, tmp_path_factory)

    def evaluated(self: Evaluator, files: Mapping[str, Sequence[Path]], run_id: str) -> Mapping[str, list[Any]]:
        digests = {t: [hashlib.sha256(p.read_bytes()).hexdigest() for p in paths] for t, paths in files.items()}
        values, self.findings, self.beyond_range = kept(
            (self.fingerprint, run_id, sorted(digests.items())),
            lambda: (evaluate(self, files, run_id), self.findings, self.beyond_range),
        )
        return dict(values)

    def audited(lake: Lake, definitions: Definitions, runs: list[RunVersion]) -> list[Problem]:
        whole = [(r.run_id, r.name, sorted(r.digests.values())) for r in runs]  # others were left out
        key = (definitions.all_fingerprint, fsck._FEW, whole)
        problems: list[Problem] = kept(key, lambda: list(audits(lake, definitions, runs)))
        return problems

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluator, "__call__", evaluated)
        patch.setattr(fsck, "_audits", audited)
        yield


def _home(factory: pytest.TempPathFactory) -> Path:
    """The temporary folder of all processes of the tests."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def _kept(factory: pytest.TempPathFactory, key: object, make: Callable[[], Any]) -> Any:
    """What was made for a key before, by whichever process of the tests, or is now."""
    file = _home(factory) / "kept" / hashlib.sha256(repr(key).encode()).hexdigest()
    if not file.exists():
        made = make()
        file.parent.mkdir(exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        part.write_bytes(pickle.dumps(made))
        part.rename(file)
    return pickle.loads(file.read_bytes())


def _runs_of(warehouse: Warehouse) -> object:
    """What changes whenever a run does; of a folder the manifests, which name the digests of all files."""
    if "://" in str(warehouse.path):
        return warehouse.path, warehouse.lake.state()
    manifests = sorted((Path(warehouse.path) / "manifests").glob("*.json"))
    return [hashlib.sha256(p.read_bytes()).hexdigest() for p in manifests]


@contextmanager
def _remembering(factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ask no question that was asked of the same runs before; copies of a warehouse have the same."""
    from tracewarehouse.warehouse import Warehouse

    ask = Warehouse._ask

    def remembered(
        self: Warehouse, session: Session, sql: str | ParsedSql, parameters: Mapping[str, Any], **how: bool
    ) -> QueryResult:
        if not how.get("read_only", True):
            return ask(self, session, sql, parameters, **how)
        definitions = self.sql and self.definitions.all_fingerprint
        runs = session.only if session.only is None else sorted(session.only)
        asked = (sql if isinstance(sql, str) else sql.sql, sorted(parameters.items()), how, self._limits)
        key = (_runs_of(self), definitions, runs, asked)
        result: QueryResult = _kept(factory, key, lambda: ask(self, session, sql, parameters, **how))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Warehouse, "_ask", remembered)
        yield


@pytest.fixture(scope="module")
def asked_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ask each question of the same runs once, whichever module asks.

    For tests that ask much of the same, and damage no file that holds rows: DuckDB takes most of a second to plan the
    SQL of a run's main numbers, and again for each test.
    """
    with _remembering(tmp_path_factory):
        yield


@pytest.fixture
def asked_once_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ask each question of the same runs once in a test, such as one that writes a report in every format."""
    with _remembering(tmp_path_factory):
        yield


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder for all processes of the tests, which the one that needs it first makes."""
    import fcntl

    home = _home(factory)
    folder = home / name
    with (home / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = factory.mktemp(name) / "warehouse"
            make(part)
            part.rename(folder)
    return folder


@pytest.fixture(scope="session")
def all_captures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """A warehouse of all captures in data/, for tests that only read it, or that change a copy of its folder."""
    from tracewarehouse.warehouse import open_warehouse

    def make(folder: Path) -> None:
        with open_warehouse(folder, create=True) as opened:
            opened.ingest(ROOT / "data" / "captures")

    with open_warehouse(made_once(tmp_path_factory, "all-captures", make)) as opened:
        yield opened


@pytest.fixture(scope="session")
def copy_of_captures(all_captures: Warehouse) -> Callable[..., Path]:
    """Makes a warehouse of some captures of data/ in a new folder, by their names; they are not ingested again."""

    def copied(folder: Path, *names: str) -> Path:
        for run in map(all_captures.run, names):
            for path in ("lake/" + run.run_id, f"manifests/{run.run_id}.json"):
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if path.startswith("lake") else shutil.copyfile
                copy(Path(all_captures.path) / path, target)
        return folder

    return copied


MESHES = {
    "cpu_deepseekv2_ep4": "ep=4",
    "cpu_deepseekv3_dp2ep2tp2": "dp=2,ep=2,tp=2",
    "cpu_llama_pp2tp2": "pp=2,tp=2",
    "cpu_llama_ppmp": "pp=2,tp=2",
    "cpu_llama_sp_tp4": "tp=4",
    "cpu_llama_tp4": "tp=4",
    "cpu_qwen3_dp2tp2": "dp=2,tp=2",
    "tpu-2chip-vllm-tp2-prefill": "tp=2",
    "chrome": "tp=2",
}
"""What the README of the real captures says of their meshes."""


@pytest.fixture(scope="session")
def shared_captures(shared_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """A warehouse of all real captures beside the repository, for tests that only read it; none violates an audit.

    Of the one that is there in both forms, the run `chrome` is of the Chrome trace.
    """
    from dataclasses import replace

    from tracewarehouse.ingest.capture.manifest import Mesh
    from tracewarehouse.ingest.capture.run_options import RunOptions
    from tracewarehouse.ingest.capture.sources import find_captures
    from tracewarehouse.ingest.errors import SkippedEntryWarning
    from tracewarehouse.warehouse import open_warehouse

    def make(folder: Path) -> None:
        [chrome] = find_captures(shared_traces / "tpu-2chip-vllm-tp2-prefill.trace.json.gz")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SkippedEntryWarning)  # files of other tools lie among them
            found = find_captures(shared_traces)
        made_up = shared_traces / "situations"  # which tests read one by one
        captures = [c for c in found if made_up not in c.files[0].parents]
        with open_warehouse(folder, create=True) as opened:
            for capture in [*captures, replace(chrome, name="chrome")]:
                mesh = Mesh.parse(MESHES[capture.name]) if capture.name in MESHES else None
                result = opened.ingest_capture(capture, RunOptions(mesh, capture.name))
                assert not any(note.startswith("audit ") for note in result.notes), (capture.name, result.notes)

    with open_warehouse(made_once(tmp_path_factory, "shared-captures", make)) as opened:
        yield opened


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Folder of real captures that lies beside the repository; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("TRACEWAREHOUSE_TEST_TRACES", ROOT.parent / "shared" / "traces"))
    if not folder.is_dir():
        pytest.skip(f"the real captures are not here: no folder {folder.name} beside the repository")
    return folder
