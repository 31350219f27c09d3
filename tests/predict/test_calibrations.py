"""The table of rates: which row wins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracewarehouse.collect.tpu.compile_ahead import Topology
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.predict.calibrations import COLUMNS, Calibration, rates, read_calibrations, shipped
from tracewarehouse.predict.links import SliceCollective, algorithm

HEAD = ",".join(COLUMNS) + "\n"


def test_every_row_that_ships_has_a_source_and_a_range() -> None:
    assert len(shipped()) > 40
    for row in shipped():
        assert row.source, row
        assert row.low <= row.value <= row.high, row
    assert len({(r.chip, r.class_, r.what) for r in shipped()}) == len(shipped())


@pytest.mark.parametrize("generation", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_every_generation_has_the_rates_of_a_chip_and_its_links(generation: str) -> None:
    found = rates(generation)
    assert {("clock", "hz"), ("hbm", "stream_share"), ("product", "factor"), ("ici", "gbps")} <= found.keys()


def test_the_row_of_the_chip_wins_and_ones_own_row_wins_over_it() -> None:
    every = Calibration("link", "*", "ici", "gbps", 1, 1, 1, 1, "every chip")
    own = every._replace(chip="v6e", value=80.0, low=70.0, high=90.0)
    other = own._replace(chip="v5e", value=7.0, low=7.0, high=7.0)
    assert rates("v6e")["ici", "gbps"].value == 90
    assert rates("v6e", [own, every, other])["ici", "gbps"] == own
    assert rates("v4", [own, every, other])["ici", "gbps"] == every


def test_a_file_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "calibrations.csv"
    assert read_calibrations(path) == ()
    path.write_text(HEAD + 'link,v6e,hop,us,0.8,0.7,0.9,12,"run a, of today"\n')
    assert read_calibrations(path) == (Calibration("link", "v6e", "hop", "us", 0.8, 0.7, 0.9, 12, "run a, of today"),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "first line is ''"),
        ("kind,chip\n", "should be 'kind,chip,class,what,value,low,high,n,source'"),
        (HEAD + "link,v6e,hop,us,fast,1,1,1,x\n", "line 2 of calibrations.csv is no calibration: value, low"),
        (HEAD + "link,v6e,hop,us,1,1,1,1,x\nlink,v6e\n", "line 3 of calibrations.csv"),
        (HEAD + "link,v6e,hop,us,1,2,3,1,x\n", "expected 1e-6 <= low <= value <= high"),
        (HEAD + "link,v6e,hop,us,1,0,3,1,x\n", "expected 1e-6 <= low <= value <= high"),
        (HEAD + "link,v6e,hop,us,nan,nan,nan,1,x\n", "expected 1e-6 <= low <= value <= high"),
        (HEAD + "link,v6e,hop,us,1,1,inf,1,x\n", "expected 1e-6 <= low <= value <= high"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "calibrations.csv"
    path.write_text(text)
    with pytest.raises(CaptureError) as refused:
        read_calibrations(path)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("link,v6,ici,gbps,1,1,1,1,x", "line 2 of calibrations.csv would change no prediction: no chip is named 'v6'"),
        ("link,v6e,ici,gbs,1,1,1,1,x", "no rate is named 'gbs' of class 'ici'; that class has gbps"),
        ("machine,v6e,products,factor,1,1,1,1,x", "of class 'products'; did you mean product?"),
        ("link,v6e,ici,gbps,1,1,1,1,x\nlink,v6e,all-reduce circle 8,us,1,1,1,1,x", "line 3 of calibrations.csv"),
        ("link,v6e,all-reduce cycle 8,us,1,1,1,1,x", "its algorithm also needs a row with gbps"),
        (
            "link,v6e,all-reduce cycle 8,us,1,1,1,1,x\nlink,v5e,all-reduce cycle 8,gbps,1,1,1,1,x",
            "its algorithm also needs a row with gbps",
        ),
    ],
)
def test_a_row_that_no_prediction_uses_is_refused(tmp_path: Path, rows: str, says: str) -> None:
    path = tmp_path / "calibrations.csv"
    path.write_text(HEAD + rows + "\n")
    with pytest.raises(CaptureError) as refused:
        read_calibrations(path)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "collective",
    [
        SliceCollective("all-reduce", 8, ((0, 1, 2, 3, 4, 5, 6, 7),), strategy="UniDirection1DRingStrategy"),
        SliceCollective("all-reduce", 8, ((0, 1, 2, 3, 4, 5, 6, 7),), strategy="StrategyND"),
        SliceCollective("all-gather", 8, ((0, 2), (1, 3), (4, 6), (5, 7)), on_sparsecore=True),
        SliceCollective("all-to-all", 8, ((0, 1, 2, 3), (4, 5, 6, 7))),
        SliceCollective("collective-permute", 8, ((0, 1), (0, 6)), is_pairs=True),
    ],
)
def test_a_row_may_be_of_any_algorithm_that_links_name(tmp_path: Path, collective: SliceCollective) -> None:
    name = algorithm(Topology.parse("v6e:2x4"), collective).name
    path = tmp_path / "calibrations.csv"
    path.write_text(HEAD + "".join(f"link,v6e,{name},{what},1,1,1,1,x\n" for what in ("us", "gbps")))
    assert [row.class_ for row in read_calibrations(path)] == [name, name]


def test_a_line_may_have_one_row_of_every_chip_and_one_of_a_chip(tmp_path: Path) -> None:
    path = tmp_path / "calibrations.csv"
    path.write_text(HEAD + "link,*,all-reduce cycle 8,us,1,1,1,1,x\nlink,v6e,all-reduce cycle 8,gbps,2,2,2,1,x\n")
    found = rates("v6e", read_calibrations(path))
    assert [found["all-reduce cycle 8", what].value for what in ("us", "gbps")] == [1, 2]


def test_a_folder_or_bytes_in_place_of_a_table_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "bytes.csv"):
        with pytest.raises(CaptureError, match="cannot be read as a table of calibrations"):
            read_calibrations(path)
