from __future__ import annotations

from itertools import permutations

import pytest

from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo.replica_groups import (
    MAX_MEMBERS,
    Groups,
    explicit_groups,
    explicit_pairs,
    flattened,
    iota_groups,
    mesh_groups,
    parse_groups,
    parse_pairs,
)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{}", ()),
        ("{{}}", ()),
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{{3, 1}, {2, 0}}", ((3, 1), (2, 0))),
        ("{{0},{1,2,3}}", ((0,), (1, 2, 3))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[1,2]<=[2]", ((0, 1),)),
        ("[2]<=[2]", ((0, 1),)),
        # devices (a, b, c) of 2 x 2 x 2, grouped along a
        ("[4,2]<=[2,2,2]T(1,2,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['stage'=2,'local'=4] {'local'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['stage'=2,'local'=4] {'stage'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=2] {'a','b'}", ((0, 1, 2, 3),)),
        ("mesh['a'=2,'b'=2] {'b','a'}", ((0, 2, 1, 3),)),
        ("mesh['axis_0'=1,'axis_1'=4] {'axis_1'}", ((0, 1, 2, 3),)),
        ("mesh[a=2,b=2] {b}", ((0, 1), (2, 3))),
        ("@mesh<a=2,b=2> {b}", ((0, 1), (2, 3))),
        ("mesh['a'=8] {'a':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=8] {'a':(1)2,'a':(4)2}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['a'=8] {'a':(4)2,'a':(1)2}", ((0, 4, 1, 5), (2, 6, 3, 7))),
        ("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}", ((0, 2), (1, 3))),
        ("mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}", ((0, 2), (1, 3))),
        ("@mesh<a=2,b=2>, device_ids=(3,2,1,0) {a}", ((3, 1), (2, 0))),
    ],
)
def test_every_encoding(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    assert parse_groups(text) == groups


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "{",
        "{{0,1}",
        "{0,1}",
        "{{0,,1}}",
        "{{0,-1}}",
        "{{0,1},{1,2}}",
        "{{99999999999}}",
        "{{0,1},x}",
        "[2,2]",
        "[2,2]<=[5]",
        "[2,2]<=[4]T(1)",
        "[2,2]<=[2,2]T(0,0)",
        "[2,2,2]<=[8]",
        "[0,2]<=[0]",
        "[]<=[]",
        "[1048577,1]<=[1048577]",
        "[9999999999,9999999999]<=[9999999999,9999999999]",
        "[1,99999999999999999999999]<=[99999999999999999999999]",
        "mesh['a'=2] {'b'}",
        "mesh['a'=2]",
        "mesh['a'=6] {'a':(4)2}",
        "mesh['a'=8] {'a':(1)4,'a':(2)2}",
        "mesh['a'=8] {'a','a'}",
        "mesh['a'=2,'b'=2], device_ids=(0,1) {'b'}",
        "mesh['a'=2,'b'=2], device_ids=(0,0,1,1) {'b'}",
        "mesh['a'=999999,'b'=999999] {'b'}",
        "mesh['a'=0] {'a'}",
        "mesh[" + ",".join(f"'x{i}'=1" for i in range(100)) + "] {'x0'}",
    ],
)
def test_damaged_text_is_refused(text: str) -> None:
    with pytest.raises(MalformedError):
        parse_groups(text)


def test_pairs() -> None:
    assert parse_pairs("{{0,2},{1,3},{2,0},{3,1}}") == ((0, 2), (1, 3), (2, 0), (3, 1))
    assert parse_pairs("{}") == ()


@pytest.mark.parametrize("text", ["{{0}}", "{{0,1,2}}", "{{0,1},{0,2}}", "{{0,2},{1,2}}", "0,1", "{{}}"])
def test_what_are_no_pairs_is_refused(text: str) -> None:
    with pytest.raises(MalformedError):
        parse_pairs(text)


@pytest.mark.parametrize(
    ("has_channel", "is_global", "has_global_form", "expected", "of_all"),
    [
        (False, False, True, ((0, 3), (1, 4), (2, 5)), ((0, 3), (1, 4), (2, 5))),  # replicas, by partition
        (True, False, False, ((0, 1), (3, 4)), ((0, 1, 2), (3, 4, 5))),  # partitions, by replica
        (True, False, True, ((0, 1, 2, 3, 4, 5),), ((0, 1, 2, 3, 4, 5),)),  # replicas with all their partitions
        (True, True, True, ((0, 1),), ()),  # devices
    ],
)
def test_device_numbers_of_two_replicas_in_three_partitions(
    has_channel: bool, is_global: bool, has_global_form: bool, expected: Groups, of_all: Groups
) -> None:
    for groups, numbered in ((((0, 1),), expected), ((), of_all)):
        found = flattened(groups, 2, 3, has_channel=has_channel, is_global=is_global, has_global_form=has_global_form)
        assert found == numbered


def test_members_are_bounded() -> None:
    assert sum(map(len, explicit_groups([range(MAX_MEMBERS)]))) == MAX_MEMBERS
    with pytest.raises(MalformedError, match="members"):
        explicit_groups([range(MAX_MEMBERS + 1)])
    assert len(iota_groups((2, MAX_MEMBERS // 2), (MAX_MEMBERS,))) == 2


def test_negative_devices_are_refused() -> None:
    with pytest.raises(MalformedError):
        explicit_groups([[-1, 0]])
    with pytest.raises(MalformedError):
        explicit_pairs([(0, -1)])


def test_sub_axes_are_axes_of_the_split_mesh() -> None:
    # An axis of 12 = 2 x 3 x 2: naming parts of it is the same as naming the axes of a 2 x 3 x 2 mesh.
    parts = [(0, 1, 2), (0, 2, 3), (0, 6, 2)]
    for count in (1, 2, 3):
        for chosen in permutations(range(3), count):
            whole = mesh_groups((2, 3, 2), tuple((axis, 1, 0) for axis in chosen))
            assert mesh_groups((12,), tuple(parts[axis] for axis in chosen)) == whole


@pytest.mark.parametrize(
    ("sizes", "axes", "groups"),
    [
        ((2, 2), [(0, 1, 1), (0, 1, 2)], ((0, 2), (1, 3))),
        ((2, 2), [(0, 1, 1), (0, 1, 1)], ((0,), (1,), (2,), (3,))),
        ((1, 2), [(0, 1, 0), (0, 1, 0), (1, 1, 0)], ((0, 1),)),
    ],
)
def test_parts_of_size_1_move_nothing(
    sizes: tuple[int, ...], axes: list[tuple[int, int, int]], groups: tuple[tuple[int, ...], ...]
) -> None:
    assert mesh_groups(sizes, tuple(axes)) == groups
