"""A table is never cut off, and never obeyed by a terminal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracewarehouse.queries.text_table import cell, draw


def test_numbers_stand_to_the_right_and_text_to_the_left() -> None:
    assert list(draw(["name", "n"], [("a", 1), ("bcdef", 123)])) == [
        "name     n",
        "─────  ───",
        "a        1",
        "bcdef  123",
    ]


def test_no_rows_leave_the_header() -> None:
    assert list(draw(["name", "n"], [])) == ["name  n", "────  ─"]


def test_without_a_width_a_row_is_one_line() -> None:
    text = "x" * 1000
    assert list(draw(["a", "b"], [(text, 1)]))[2] == f"{text}  1"


def test_a_long_cell_is_folded_to_the_terminal() -> None:
    text = " ".join(f"word{i}" for i in range(40))
    lines = list(draw(["name", "text", "n"], [("a", text, 7)], 80))
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(line[6:76].split()) for line in lines[2:]).split() == text.split()
    assert lines[2].endswith("7")


def test_many_columns_become_blocks() -> None:
    columns = [f"column_{i}" for i in range(12)]
    lines = list(draw(columns, [tuple(range(12)), tuple("abcdefghijkl")], 80))
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["column_0", "0"]
    assert len(lines) == 2 * 13


def test_columns_without_values_make_room_and_are_named() -> None:
    rows = [("r0123456789ab", None, "x" * 50, None)]
    lines = list(draw(["run_id", "nothing_1", "text", "nothing_2"], rows, 80))
    assert lines[0].split() == ["run_id", "text"]
    assert lines[-1] == "NULL in every row: nothing_1, nothing_2"
    assert "nothing_1" in next(draw(["run_id", "nothing_1", "text", "nothing_2"], rows, 120))
    assert "nothing_1" in next(draw(["run_id", "nothing_1", "text", "nothing_2"], rows))
    assert next(draw(["nothing_1", "b" * 80], [(None, None)], 80)).startswith("── row 1")


def test_ids_are_never_folded() -> None:
    name = "r" + "0123456789abcdef" * 2
    lines = list(draw(["run_id", "text"], [(name, "word " * 40)], 80))
    assert lines[2].startswith(f"{name}  word")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "true"),
        (0.1 + 0.2, "0.3"),
        (1234567.89, "1234567.9"),
        (1e300, "1e+300"),
        (float("nan"), "nan"),
        (12345678901234567890, "12345678901234567890"),
        (b"\x00\xff", "0x00ff"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\u202etxt", r"\u202etxt"),
        ("größe 大", "größe 大"),
        ([1, None], "[1, None]"),
    ],
)
def test_a_cell_shows_its_value_on_one_line(value: Any, text: str) -> None:
    assert cell(value) == text


@given(
    st.lists(st.lists(st.text(max_size=60), min_size=3, max_size=3), max_size=4),
    st.integers(min_value=20, max_value=120),
)
def test_everything_is_drawn_whatever_the_width(rows: list[list[str]], width: int) -> None:
    drawn = "".join("".join(draw(["a", "b", "c"], rows, width)).split())
    for row in rows:
        for value in row:
            for character in cell(value):
                assert character.isspace() or character in drawn


def test_wide_characters_take_two_cells() -> None:
    lines = list(draw(["a", "b"], [("大大", "x"), ("abc", "y")]))
    assert lines[2:] == ["大大  x", "abc   y"]


def test_a_text_of_megabytes_neither_widens_every_row_nor_takes_for_ever() -> None:
    """Work and output in proportion to the text: folding it anew for every line would take minutes."""
    rows = [("é" * 2_000_000, 1)] + [("short", 1)] * 100
    assert sum(map(len, draw(["text", "n"], rows))) < 2_000_000 + 102 * 410
    assert sum(map(len, draw(["text", "n"], rows, 80))) < 2_500_000
