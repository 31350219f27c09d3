from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tracewarehouse.ingest.capture.manifest import Manifest, PhaseMark
from tracewarehouse.ingest.capture.promises import NOTE, CollectiveStep, broken_promises
from tracewarehouse.ingest.pipeline import ingest_one

CAPTURES = Path(__file__).parents[3] / "data" / "captures"


def manifest(steps: list[int], **promise: Any) -> Manifest:
    promised = {"phase": "decode", "kind": "all-reduce", "axis": "tp", "count": 4} | promise
    return Manifest.model_validate(
        {
            "name": "r",
            "model": {"name": "m"},
            "dtype": "float32",
            "batch_size": 1,
            "input_length": 1,
            "output_length": 1 + len(steps),
            "mesh": {"axes": {"tp": 2}},
            "phases": [PhaseMark(name="decode", step=s, start_ns=0, end_ns=1).model_dump() for s in steps],
            "promised_collectives": [promised],
        }
    )


def reduces(device: int, step: int, axis: str = "tp") -> CollectiveStep:
    return CollectiveStep(device, "decode", step, "all-reduce", axis)


def test_enough_on_every_device_and_more_than_enough() -> None:
    found = {reduces(d, s): 4 + s for d in (0, 1) for s in (1, 2)}
    assert broken_promises(manifest([1, 2]), found, {0: None, 1: None}) == []


def test_the_note_names_what_was_promised_and_what_is_there() -> None:
    found = {reduces(0, 1): 4, reduces(1, 1): 3, reduces(1, 1, "dp"): 1, reduces(0, 2): 4}
    (note,) = broken_promises(manifest([1, 2]), found, {0: None, 1: None})
    assert note.startswith(NOTE)
    assert "at least 4 all-reduce over tp in every step of decode on every device" in note
    assert "device 1 has 1 all-reduce over dp, 3 all-reduce over tp in step 1" in note
    assert "2 of 4 device steps" in note


def test_a_promise_of_a_stage_is_for_its_devices() -> None:
    found = {reduces(2, 1): 4, reduces(3, 1): 3}
    stages = {0: 0, 1: 0, 2: 1, 3: 1}
    (note,) = broken_promises(manifest([1], stage=1), found, stages)
    assert "on every device of stage 1; device 3 has 3 all-reduce over tp in step 1 (1 of 2 device steps" in note


def test_a_step_that_is_not_in_the_capture_breaks_its_promise() -> None:
    (note,) = broken_promises(manifest([1, 2]), {reduces(0, 1): 4}, {0: None})
    assert "device 0 has no collective in step 2" in note


@pytest.mark.parametrize("steps_found", [[1, 2], []])
def test_without_steps_in_the_manifest_those_of_the_capture_count(steps_found: list[int]) -> None:
    notes = broken_promises(manifest([]), {reduces(0, s): 4 for s in steps_found}, {0: None})
    assert len(notes) == (0 if steps_found else 1)


def test_nothing_promised_is_kept() -> None:
    assert broken_promises(manifest([1]).model_copy(update={"promised_collectives": None}), {}, {0: None}) == []


def test_ingest_notes_a_broken_promise(tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    shutil.copytree(CAPTURES / "llama-tp4-b4-i16-o17", capture)
    file = capture / "manifest.json"
    content = json.loads(file.read_text())
    assert not [n for n in ingest_one(capture, tmp_path / "kept").notes if n.startswith(NOTE)]

    content["promised_collectives"][0]["count"] += 1
    file.write_text(json.dumps(content))
    (note,) = [n for n in ingest_one(capture, tmp_path / "broken").notes if n.startswith(NOTE)]
    assert "device 0 has 2 all-gather over tp, 4 all-reduce over tp in step 0 (4 of 4 device steps" in note
