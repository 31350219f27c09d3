"""The wheel holds all that the program needs, and starts without the development dependencies."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tiny_capture import tiny_capture

ROOT = Path(__file__).resolve().parents[2]
DEVELOPMENT = ["pytest", "hypothesis", "mypy", "polars", "sqlfluff", "torch", "torch_xla", "transformers", "xprof"]

pytestmark = pytest.mark.slow


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources so that nothing is left in them."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("collect", "ingest", "tracewarehouse", "dashboards", "sql", "data"):
        ignored = shutil.ignore_patterns("__pycache__", "captures")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    pip("wheel", source, "--no-deps", "--quiet", "--wheel-dir", folder)
    [path] = folder.glob("*.whl")
    return path


def test_it_holds_definitions_data_and_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("collect", "ingest", "tracewarehouse", "dashboards"):
        assert f"{package}/py.typed" in names
    definitions = {str(p.relative_to(ROOT)) for p in (ROOT / "sql").rglob("*") if p.is_file()}
    assert any(n.endswith("tpot_v1.sql") for n in definitions)
    assert {f"tracewarehouse/{n}" for n in definitions} <= names
    assert any(n.endswith("hardware.json") for n in names)
    assert [n for n in names if n.startswith("dashboards/templates/")]
    assert not [n for n in names if n.startswith(("tests/", "docs/"))]
    assert [n for n in names if n.endswith("licenses/LICENSE")]


def test_the_command_line_starts_from_it(wheel: Path, tmp_path: Path) -> None:
    pip("install", "--no-deps", "--quiet", "--target", tmp_path / "site", wheel)
    assert (tmp_path / "site" / "bin" / "tw").exists()
    assert (tmp_path / "site" / "bin" / "tracewarehouse").exists()
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path / "site")!r})
sys.modules |= dict.fromkeys({DEVELOPMENT})  # an import of one of these fails
import tracewarehouse, ingest
assert all(m.__file__.startswith({str(tmp_path / "site")!r}) for m in (tracewarehouse, ingest))
from tracewarehouse.cli import main
main()
"""

    def tw(*arguments: str) -> str:
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert tw("--version").startswith("tracewarehouse ")
    file = tiny_capture().write(tmp_path / "run.xplane.pb")
    assert tw("query", str(file), "SELECT clock FROM metrics.tpot ORDER BY clock", "--format", "csv") == (
        "clock\ndevice\nhost\n"
    )
    assert "tpot" in tw("metrics", "list")
