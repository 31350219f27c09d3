"""The wheel holds all that the program needs, and starts without the development dependencies."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tiny_capture import tiny_capture

ROOT = Path(__file__).resolve().parents[2]
DEVELOPMENT = [
    "pytest", "hypothesis", "mcp", "mypy", "polars", "sqlfluff", "torch", "torch_xla", "transformers", "xlsxwriter",
    "xprof",
]  # fmt: skip

pytestmark = pytest.mark.slow


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, built from a copy of the sources so that nothing is left in them."""
    folder = tmp_path_factory.mktemp("sdist")
    source = folder / "source"
    source.mkdir()
    subprocess.run(["git", "-C", ROOT, "checkout-index", "--all", f"--prefix={source}/"], check=True)
    command = [sys.executable, "-m", "build", "--sdist", "--outdir", folder, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [path] = folder.glob("*.tar.gz")
    return path


def wheel_of(source: Path, folder: Path) -> Path:
    pip("wheel", source, "--no-deps", "--quiet", "-w", folder)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution."""
    return wheel_of(sdist, tmp_path_factory.mktemp("wheel"))


def test_it_is_the_same_from_the_tree(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    of_tree = wheel_of(sdist.parent / "source", tmp_path)
    assert of_tree.name == wheel.name
    files = [{f.filename: f.CRC for f in zipfile.ZipFile(path).infolist()} for path in (of_tree, wheel)]
    assert files[0] == files[1]


def test_it_holds_definitions_data_and_types_and_nothing_beside_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == {"tracewarehouse"}
    for package in ("", "collect/", "ingest/", "dashboards/"):
        assert f"tracewarehouse/{package}py.typed" in names
    sql = ROOT / "tracewarehouse" / "sql"
    definitions = {str(p.relative_to(ROOT)) for p in sql.rglob("*") if p.is_file()}
    assert any(n.endswith("tpot_v1.sql") for n in definitions)
    assert definitions <= set(names)
    assert "tracewarehouse/hardware.json" in names
    assert "tracewarehouse/skills/tracewarehouse/SKILL.md" in names
    for room in ("dashboards", "serve"):
        assert [n for n in names if n.startswith(f"tracewarehouse/{room}/templates/")]
    assert [n for n in names if n.endswith("licenses/LICENSE")]


def test_the_command_line_starts_from_it(wheel: Path, tmp_path: Path) -> None:
    pip("install", "--no-deps", "--quiet", "--target", tmp_path / "site", wheel)
    assert (tmp_path / "site" / "bin" / "tw").exists()
    assert (tmp_path / "site" / "bin" / "tracewarehouse").exists()
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path / "site")!r})
sys.modules |= dict.fromkeys({[*DEVELOPMENT, "dashboards"]})  # an import of one of these fails
import tracewarehouse
assert tracewarehouse.__file__.startswith({str(tmp_path / "site")!r})
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
    assert tw("sample") == "captures/llama-tp4-b4-i16-o17\n"
    assert tw("query", "captures", "SELECT name FROM runs", "--csv") == "name\nllama-tp4-b4-i16-o17\n"
    assert "llama-tp4-sp" not in str(list((tmp_path / "site").rglob("*.pb")))
    tw("-w", "warehouse", "ingest", str(file))
    assert tw("-w", "warehouse", "report", "-o", "page.html") == "page.html\n"
