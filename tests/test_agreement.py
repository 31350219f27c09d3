"""docs/agreement.md says what its script finds, of the captures that the repository has."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import agreement  # noqa: E402

from tracewarehouse.ingest.capture.sources import Capture, find_captures  # noqa: E402
from tracewarehouse.warehouse import Warehouse, open_warehouse  # noqa: E402

CAPTURES = [c for c in find_captures(agreement.DATA) if c.name in ("deepseek_v2-ep4-b4-i16-o9", "llama-tp4-b4-i16-o17")]
"""A dense model and one with experts: tests/sql/test_golden.py holds the numbers of the others."""
PAGE = agreement.PAGE.read_text(encoding="utf-8")
XPROF = json.loads(agreement.XPROF.read_text(encoding="utf-8"))

pytestmark = pytest.mark.usefixtures("asked_once")


@pytest.fixture(scope="module")
def warehouse(all_captures: Warehouse, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """A warehouse that has the captures already, of which each section ingests its own: they are unchanged."""
    folder = shutil.copytree(all_captures.path, tmp_path_factory.mktemp("agreement") / "warehouse")
    with open_warehouse(folder) as opened:
        yield opened


def test_the_page_begins_as_the_script_writes_it() -> None:
    assert PAGE.startswith(agreement.page_head(XPROF))


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda c: c.name)
def test_a_capture_says_what_the_script_finds(warehouse: Warehouse, capture: Capture) -> None:
    xprof = XPROF["captures"].get(agreement.title(capture), {})
    assert agreement.section(warehouse, capture, xprof) in PAGE


def test_a_difference_without_a_reason_is_refused(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "REASONS", {})
    with pytest.raises(ValueError, match=r"Step time, decode is .*, of XProf 99\.0, and no reason is known"):
        agreement.section(warehouse, CAPTURES[0], {"step_time_ms": 99.0})


def test_a_number_that_cannot_be_recomputed_is_refused(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    real = agreement.main_numbers

    def one_off(run: Any) -> Any:
        return {key: value * (1 + 1e-6) for key, value in real(run).items()}

    monkeypatch.setattr(agreement, "main_numbers", one_off)
    with pytest.raises(ValueError, match=r"TTFT, host is .*, recomputed "):
        agreement.section(warehouse, CAPTURES[0], {})


def test_a_number_that_the_bytes_contradict_is_refused(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "numbers_from_bytes", lambda path, phase: {("ttft", "host"): 1.0})
    with pytest.raises(ValueError, match=r"TTFT, host is .*, from the bytes 1\.0"):
        agreement.section(warehouse, CAPTURES[0], {})


def test_other_numbers_are_held_against_both_recomputations(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    contradicted = {("prefill_throughput", ""): 1.0}
    with monkeypatch.context() as patched:
        patched.setattr(agreement, "work_from_bytes", lambda path, phase, facts: contradicted)
        with pytest.raises(ValueError, match=r"Prefill throughput is .*, from the bytes 1\.0"):
            agreement.section(warehouse, CAPTURES[0], {})
    monkeypatch.setattr(agreement, "other_numbers", lambda run: contradicted)
    with pytest.raises(ValueError, match=r"Prefill throughput is .*, recomputed 1\.0"):
        agreement.section(warehouse, CAPTURES[0], {})
