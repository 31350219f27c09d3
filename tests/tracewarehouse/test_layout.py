"""The package is one real folder: nothing in it is a link, and nothing needs the links beside it."""

from __future__ import annotations

import filecmp
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
