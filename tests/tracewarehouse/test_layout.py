"""The package is one real folder: nothing in it is a link, and nothing needs the links beside it."""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tracewarehouse.ingest.capture.locations import NAME, sample

ROOT = Path(__file__).resolve().parents[2]
LINKS = ("collect", "ingest", "sql", "dashboards")


def test_nothing_in_the_package_is_a_link() -> None:
    assert not [p for p in (ROOT / "tracewarehouse").rglob("*") if p.is_symlink()]


@pytest.mark.parametrize("name", LINKS)
def test_a_name_at_the_top_leads_to_the_folder_of_the_package(name: str) -> None:
    link = ROOT / name
    if not link.is_symlink():
        pytest.skip("a checkout without links")
    assert link.readlink() == Path("tracewarehouse") / name


def test_the_sample_is_the_capture_in_data() -> None:
    files = [str(p.relative_to(sample())) for p in sample().rglob("*") if p.is_file()]
    assert len(files) == 3
    assert filecmp.cmpfiles(sample(), ROOT / "data" / "captures" / NAME, files, shallow=False)[0] == files


@pytest.mark.slow
def test_a_clone_without_links_installs_measures_and_passes_its_tests(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("the sources are not a checkout of git")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "-c", "core.symlinks=false", ROOT, clone], check=True)
    assert not any((clone / name).is_symlink() or (clone / name).is_dir() for name in LINKS)

    # an environment of its own, with the libraries of this one
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", clone / ".venv"], check=True)
    [site] = (clone / ".venv").glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
    python = clone / ".venv" / "bin" / "python"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRACEWAREHOUSE")}
    offline = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    wheel = subprocess.run([sys.executable, "-m", "pip", "wheel", *offline[:3], "-w", tmp_path, clone], check=False)
    assert wheel.returncode == 0
    [built] = tmp_path.glob("*.whl")
    target = ["--python", python, "install", *offline, "--force-reinstall", built]
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
