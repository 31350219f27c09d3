"""Every command of the README runs, in the order in which a reader meets them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if k != "TRACEWAREHOUSE"} | {"PATH": path}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done


def test_commands_and_python_run_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(ROOT / "data")
    ran = 0
    for language, block in BLOCKS:
        if language == "python":
            run([sys.executable, "-c", block], tmp_path)
        elif block.startswith(("make", "tw collect")):
            continue  # tested below
        else:
            run(["bash", "-euo", "pipefail", "-c", block], tmp_path)
        ran += 1
    assert ran >= 6
    assert (tmp_path / "warehouse" / "warehouse.duckdb").is_file()
    assert (tmp_path / "report.html").stat().st_size > 100_000


SHOWN = re.findall(r"^```bash\n((?:(?!^```).)*?)^```\n\n```text\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("query", "shown"), SHOWN)
def test_output_in_the_readme_is_real(query: str, shown: str, tmp_path: Path) -> None:
    """The table under a query is what that query prints."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    printed = run(["bash", "-euo", "pipefail", "-c", query], tmp_path).stdout
    assert printed.splitlines() == shown.splitlines()


def test_several_queries_show_their_output() -> None:
    assert len(SHOWN) >= 2


def test_collect_command_records_a_capture(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch_xla") is None:
        pytest.skip("torch_xla is not installed; `make test` installs it where pip has it")
    block = next(block for _, block in BLOCKS if block.startswith("tw collect"))
    run(["bash", "-euo", "pipefail", "-c", block], tmp_path)
    assert len(list(tmp_path.glob("captures/*/plugins/profile/*/*.xplane.pb"))) == 1


def test_demo_runs_offline(tmp_path: Path) -> None:
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("make demo would make its own environment; these tests run in another one than .venv")
    done = run(["make", "--no-print-directory", "demo", "OFFLINE=1", f"DEMO={tmp_path / 'demo'}"], ROOT)
    summary, _, after = done.stdout.partition("Go on with these:")
    assert "Where the time of a step goes" in summary
    assert f"{ROOT}/.venv/bin" in after
    assert after.count("\n  tw ") == 2
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert page.count('data-chart="') > 10


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
