"""What is heavy, and what an extra brings, is imported by nobody but who uses it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import duckdb
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tiny_capture import tiny_capture

ROOT = Path(__file__).parents[2]

EXTRAS = [
    *(
        "jax",
        "jaxlib",
        "libtpu",
        "ml_dtypes",
        "torch",
        "torch_xla",
        "torch_tpu",
        "libtpu",
        "transformers",
        "safetensors",
        "tokenizers",
        "grpc",
    ),
    *("xlsxwriter", "pyspark"),
]

EVERY_MODULE = """
import importlib, pkgutil, sys
extras = sys.argv[1].split(",")
sys.modules |= dict.fromkeys(extras)  # an import of one of these fails, as if it were not installed
import tracewarehouse
names = [m.name for m in pkgutil.walk_packages(tracewarehouse.__path__, "tracewarehouse.")]
for package in ("ingest", "dashboards", "collect"):
    assert sum(name.startswith(f"tracewarehouse.{package}.") for name in names) > 2, package
for name in names:
    # A backend's modules import its stack, and its backend.py imports them when a run begins.
    is_of_backend = any(f".collect.{backend}." in name for backend in ("jax", "torch_xla", "torch_tpu"))
    if not name.endswith("__main__") and (name.endswith(".backend") or not is_of_backend):
        importlib.import_module(name)
assert not any(sys.modules.get(name) for name in extras)
from tracewarehouse.cli import run
for command in sys.argv[2:]:
    print(run(command.split()))
"""


def test_every_module_is_imported_without_the_extras_and_collect_says_what_to_install() -> None:
    said = {
        "--mesh tp=2 --backend jax": "recording with JAX needs jax, [jax]",
        "--mesh tp=2 --backend torch_xla": "recording a capture needs torch, torch_xla, transformers, [collect]",
        "--mesh tp=2 --backend torch_tpu": "recording with torch_tpu needs torch, torch_tpu, libtpu, [torch_tpu]",
        "--attach localhost:9012": "attaching needs grpcio, [attach]",
    }
    command = [sys.executable, "-c", EVERY_MODULE, ",".join(EXTRAS), *(f"collect {options}" for options in said)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.stdout == "1\n" * len(said), done.stderr
    for line, sentence in zip(done.stderr.splitlines(), said.values(), strict=True):
        begins, _, extra = sentence.rpartition("[")
        assert line.startswith(f"error: {begins}which is not installed: pip install 'tracewarehouse[{extra}'")


def brought(requirements: list[str]) -> set[str]:
    """The packages that pip would install for these, as far as their own needs are known here."""
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        need, extra = waiting.pop()
        known = canonicalize_name(need.name), ",".join(sorted(need.extras))
        if known in seen or (need.marker and not need.marker.evaluate({"extra": extra})):
            continue
        seen.add(known)
        with contextlib.suppress(PackageNotFoundError):
            own = map(Requirement, requires(need.name) or [])
            waiting += [(each, of) for each in own for of in ("", *need.extras)]
    return {name for name, _ in seen}


def test_the_extra_jax_brings_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = brought([*project["dependencies"], *project["optional-dependencies"]["jax"]])

    assert {"jax", "tokenizers", "duckdb", "pydantic-core"} <= found  # the last is what another one needs
    assert not found & {"torch", "torch-xla", "torch-tpu", "transformers", "safetensors"}


INGEST = """
import sys
from tracewarehouse.cli import run
assert run(["-w", sys.argv[1], "ingest", sys.argv[2]]) == 0
assert "pandas" not in sys.modules
import pandas
"""


def test_ingest_imports_no_pandas_though_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    capture = tiny_capture().write(tmp_path / "c.xplane.pb")
    subprocess.run([sys.executable, "-c", INGEST, tmp_path / "w", capture], check=True)


LOADED = """
import sys
from tracewarehouse.cli import run
code = run(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""

VERBS = {"tracewarehouse.cli.collect", "tracewarehouse.cli.compare", "tracewarehouse.cli.tpu", "tracewarehouse.collect"}
LIBRARIES = {"duckdb", "msgspec", "numpy", "pyarrow", "pydantic"}
DRAWING = {"altair", "fsspec", "jinja2", "pandas", "polars", "rich"}
DEFINITIONS = {"sqlglot", "tracewarehouse.definitions.reading", "yaml"}


def loaded(*arguments: str | Path) -> set[str]:
    """The modules in memory after a command."""
    command = [sys.executable, "-c", LOADED, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_the_version_is_told_without_any_verb_or_library() -> None:
    assert not loaded("--version") & {*LIBRARIES, *VERBS, *DRAWING, *DEFINITIONS}


def test_help_imports_the_verbs_and_nothing_that_they_work_with() -> None:
    modules = loaded("--help")

    assert not modules & {*LIBRARIES, *DRAWING, *DEFINITIONS}
    assert "tracewarehouse.cli.collect" in modules


def test_opening_a_warehouse_imports_neither_a_reader_nor_what_reads_rows(folder: Path) -> None:
    code = f"import sys, tracewarehouse as tw; tw.open({str(folder)!r}).lake.runs(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert not set(done.stdout.split()) & {"numpy", "pyarrow", "tracewarehouse.ingest.readers.formats", *DRAWING}


IMPORTS_LITTLE = pytest.mark.skipif(
    duckdb.__version__ < "2", reason="DuckDB 1.5 imports pandas and pyarrow for a query with a parameter"
)


@IMPORTS_LITTLE
@pytest.mark.parametrize(
    "command",
    [
        ["query", "SELECT count(*) FROM ops"],
        ["query", "SELECT unnest(range(3))"],
        ["query", "WITH mine AS (FROM main.runs) SELECT name FROM mine", "--format", "json"],
        ["runs"],
        ["runs", "--format", "csv"],
    ],
)
def test_a_question_about_tables_reads_no_definitions(folder: Path, command: list[str]) -> None:
    modules = loaded("-w", folder, *command)

    assert not modules & {"numpy", "pyarrow", "tracewarehouse.ingest.readers.formats", *VERBS, *DRAWING, *DEFINITIONS}


@IMPORTS_LITTLE
@pytest.mark.parametrize(
    "command",
    [
        ["query", "SELECT * FROM metrics.tpot"],
        ["metrics", "list"],
        ["metrics", "values", "tiny-tp2"],
        ["show", "tiny-tp2"],
    ],
)
def test_a_question_about_metrics_imports_no_tables_and_data_frames(folder: Path, command: list[str]) -> None:
    assert not loaded("-w", folder, *command) & {"numpy", "pyarrow", *VERBS, *DRAWING}
