"""Files of costs: what is read of them, and one sentence for what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracewarehouse.ingest.capture.costs import load_costs
from tracewarehouse.ingest.errors import CaptureError

TOML = '["RPA-*"]\nflops = 4_000_000\nbytes = 2e4\n\n["quantized_matmul"]\nflops = 7\n'
JSON = '{"RPA-*": {"flops": 4000000, "bytes": 20000}, "quantized_matmul": {"flops": 7}}'


@pytest.mark.parametrize(("name", "text"), [("costs.toml", TOML), ("costs.json", JSON), ("costs", "\ufeff" + JSON)])
def test_costs_of_toml_and_json(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = load_costs(tmp_path / name)
    assert [(p, c.flops, c.bytes) for p, c in found.kernels.items()] == [
        ("RPA-*", 4_000_000, 20_000),
        ("quantized_matmul", 7, None),
    ]
    assert found.name == name
    assert found.text == JSON


def test_the_first_pattern_that_matches_counts(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"a?": {"flops": 1}, "*": {"flops": 2}, "ab": {"flops": 3}}')
    found = load_costs(tmp_path / "c.json")
    assert [found.pattern_of(name) for name in ("ab", "abc", "A")] == ["a?", "*", "*"]
    (tmp_path / "d.json").write_text('{"a": {"flops": 1}}')
    assert load_costs(tmp_path / "d.json").pattern_of("A") is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.json", b"{", "cannot be read as costs: "),
        ("c.json", b"\xff{}", "cannot be read as costs: .*utf-8"),
        ("c.json", b'{"a": {"flops": 1}, "a": {"flops": 2}}', "cannot be read as costs: 'a' is given twice"),
        ("c.json", b'{"\\ud800": {"flops": 1}}', "cannot be read as costs: .*surrogates"),
        ("c.json", b"[" * 100_000, "cannot be read as costs: nested too deeply"),
        ("c.json", b" " * (2 << 20), "cannot be read as costs: larger than 1 MB"),
        ("c.toml", b"[a\n", "cannot be read as costs: "),
        ("c.toml", b'["a"]\nflops = 2020-01-01\n', "cannot be read as costs: .*date"),
        ("c.json", b"[]", "not valid costs: costs: .*dictionary"),
        ("c.json", b"{}", "not valid costs: costs: .*at least 1"),
        ("c.json", b'{"a": 5}', "not valid costs: a: "),
        ("c.json", b'{"a": {}}', "not valid costs: a: .*give flops, bytes or both; a kernel has flops, bytes or both"),
        ("c.json", b'{"a": {"flop": 1}}', "not valid costs: a.flop: Extra inputs"),
        ("c.json", b'{"a": {"flops": -1}}', "not valid costs: a.flops: .*greater than or equal to 0"),
        ("c.json", b'{"a": {"flops": 1.5}}', "not valid costs: a.flops: "),
        ("c.json", b'{"a": {"bytes": 9223372036854775808}}', "not valid costs: a.bytes: .*less than"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CaptureError, match=rf"{name}: {message}"):
        load_costs(tmp_path / name)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="expected a file, found nothing"):
        load_costs(tmp_path / "none.toml")
    with pytest.raises(CaptureError, match="expected a file, found a folder"):
        load_costs(tmp_path)
