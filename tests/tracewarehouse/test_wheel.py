"""The wheel holds all that the program needs, and starts without the development dependencies."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tiny_capture import tiny_capture

from tests.tracewarehouse.test_layout import LINKS
from tracewarehouse.ingest.capture.locations import NAME

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
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone without links, of what the index holds; nothing is left in the sources."""
    if not (ROOT / ".git").exists():
        pytest.skip("the sources are not a checkout of git")
    folder = tmp_path_factory.mktemp("clone") / "clone"
    without = ["-c", "core.symlinks=false"]
    subprocess.run(["git", "clone", "--quiet", *without, ROOT, folder], check=True)
    index = ["checkout-index", "--all", "--force", f"--prefix={folder}/"]
    subprocess.run(["git", "-C", ROOT, *without, *index], check=True)
    assert not any((folder / name).is_symlink() or (folder / name).is_dir() for name in LINKS)
    return folder


@pytest.fixture(scope="module")
def sdist(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "build", "--sdist", "--outdir", folder, clone]
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


def test_a_clone_without_links_is_the_same_measures_and_passes_its_tests(
    clone: Path, wheel: Path, tmp_path: Path
) -> None:
    # an environment of its own, with the libraries of this one
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", clone / ".venv"], check=True)
    [site] = (clone / ".venv").glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
    python = clone / ".venv" / "bin" / "python"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRACEWAREHOUSE")}
    offline = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    of_tree = wheel_of(clone, tmp_path)
    assert of_tree.name == wheel.name
    files = [{f.filename: f.CRC for f in zipfile.ZipFile(path).infolist()} for path in (of_tree, wheel)]
    assert files[0] == files[1]
    target = ["--python", python, "install", *offline, "--force-reinstall", of_tree]
    subprocess.run([sys.executable, "-m", "pip", *target], check=True)
    for done in (".installed", ".installed-collector"):
        (clone / ".venv" / done).touch()

    make = ["make", "--no-print-directory", "demo", "OFFLINE=1", f"CAPTURES=data/captures/{NAME}"]
    demo = subprocess.run(make, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    assert demo.returncode == 0, demo.stderr
    summary, _, after = demo.stdout.partition("Go on with these:")
    assert "A decode step takes" in summary
    assert f"{clone}/.venv/bin" in after
    assert after.count("\n  tw ") == 3
    assert f"\n  file://{clone}/demo/report.html\n" in summary
    page = (clone / "demo" / "report.html").read_text(encoding="utf-8")
    assert page.count('data-chart="') > 10
    tests = ["tests/ingest/hlo/test_op_name.py", "tests/sql/test_cases.py"]
    command = [python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests, "-k", "op_name or tpot"]
    passed = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    assert passed.returncode == 0, passed.stdout
