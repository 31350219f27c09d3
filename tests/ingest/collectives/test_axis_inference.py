"""Axes of a mesh that nothing describes: digits of device numbers, and names with a confidence."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracewarehouse.ingest.collectives.axis_inference import (
    LIKELIHOODS,
    MIN_CONFIDENCE,
    NAMES,
    CollectiveSeen,
    digits_of,
    infer_axes,
)
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.pipeline import ingest_one

CAPTURES = Path(__file__).resolve().parents[3] / "data" / "captures"

Groups = tuple[tuple[int, ...], ...]


def mesh_groups(sizes: list[int], along: set[int]) -> Groups:
    """Groups of a row-major mesh along some of its axes, by counting through all coordinates."""
    places = list(itertools.product(*map(range, sizes)))
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, place in enumerate(places):
        groups.setdefault(tuple(c for i, c in enumerate(place) if i not in along), []).append(device)
    return tuple(map(tuple, groups.values()))


def seen(kind: str, sizes: list[int], along: int, part: str | None = None) -> CollectiveSeen:
    """A collective along one axis of a mesh."""
    return CollectiveSeen(kind, mesh_groups(sizes, {along}), part)


meshes = st.lists(st.integers(2, 4), min_size=1, max_size=4)


class TestDigits:
    @pytest.mark.parametrize(
        ("groups", "world", "digits"),
        [
            (((0, 1, 2, 3),), 4, ((1, 4),)),
            (((0, 2), (1, 3)), 4, ((2, 4),)),
            (((3, 1), (2, 0)), 4, ((2, 4),)),
            (((0, 2), (1, 3), (4, 6), (5, 7)), 8, ((2, 4),)),
            (((0, 1, 4, 5), (2, 3, 6, 7)), 8, ((1, 2), (4, 8))),
            (((0, 1), (1, 2), (2, 3), (3, 0)), 4, ((1, 4),)),  # a ring of pairs
            (((0, 2), (1, 3), (4, 6), (5, 7), (2, 0)), 8, ((2, 4),)),
            (((0,), (1,)), 2, ()),
            (((0, 3), (1, 2)), 4, None),  # not an axis of a row-major mesh
            (((0, 1), (2,)), 3, None),
            (((0, 1),), 4, None),  # devices 2 and 3 are in no group
            (((1, 2), (0, 3)), 4, None),
            ((), 4, None),
        ],
    )
    def test_cases(self, groups: Groups, world: int, digits: tuple[tuple[int, int], ...] | None) -> None:
        assert digits_of(groups, world) == digits

    @given(meshes, st.data())
    def test_groups_of_any_mesh_are_found_again(self, sizes: list[int], data: st.DataObject) -> None:
        along = data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1))
        groups = mesh_groups(sizes, along)
        world = len(groups) * len(groups[0])
        digits = digits_of(data.draw(st.permutations(groups)), world)
        assert digits is not None
        for group in groups:
            for a, b in itertools.combinations(group, 2):
                assert any(a // low % (high // low) != b // low % (high // low) for low, high in digits)
        reached = 1
        for low, high in digits:
            reached *= high // low
        assert reached == len(groups[0])


class TestNames:
    @given(st.lists(st.integers(2, 3), min_size=3, max_size=3), st.permutations(["pp", "ep", "tp"]))
    def test_each_axis_is_named_after_what_runs_along_it(self, sizes: list[int], order: list[str]) -> None:
        typical = {
            "pp": [("collective-permute", "pipeline")],
            "ep": [("all-to-all", "moe")],
            "tp": [("all-reduce", "attn"), ("all-reduce", "mlp")],
        }
        collectives = [seen(k, sizes, i, part) for i, name in enumerate(order) for k, part in typical[name]]
        axes = infer_axes(collectives, sizes[0] * sizes[1] * sizes[2])
        assert [(a.axis, a.size) for a in axes] == list(zip(order, sizes, strict=True))
        assert all(a.confidence > 0.8 for a in axes)

    def test_replicas_share_nothing(self) -> None:
        [outer, inner] = infer_axes([seen("all-reduce", [2, 4], 1, "mlp")], 8)
        assert (outer.axis, outer.size, outer.stride, outer.evidence) == ("dp", 2, 4, "no collective along it")
        assert (inner.axis, inner.size, inner.stride, inner.evidence) == ("tp", 4, 1, "1 all-reduce in mlp")
        assert [inner.place(d) for d in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
        assert [outer.place(d) for d in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]

    def test_confidence_is_the_posterior_by_hand(self) -> None:
        """One digit: the likelihood of each name over their sum."""
        [axis] = infer_axes([seen("all-reduce", [4], 0, "attn")], 4)
        chances = LIKELIHOODS["all-reduce", "attn"]
        assert axis.confidence == pytest.approx(0.9 / sum(chances))
        assert axis.axis == NAMES[chances.index(max(chances))] == "tp"

    def test_how_often_does_not_make_it_surer(self) -> None:
        once = infer_axes([seen("all-reduce", [4], 0, "attn")], 4)
        often = infer_axes([seen("all-reduce", [4], 0, "attn")] * 64, 4)
        assert once[0].confidence == often[0].confidence
        assert often[0].evidence == "64 all-reduce in attn"

    def test_a_lone_collective_without_a_name_is_not_guessed(self) -> None:
        [axis] = infer_axes([seen("all-reduce", [4], 0)], 4)
        assert axis.axis is None
        assert axis.confidence < MIN_CONFIDENCE

    def test_many_without_a_name_look_like_layers(self) -> None:
        [axis] = infer_axes([seen("all-reduce", [4], 0)] * 8, 4)
        assert axis.axis == "tp"

    @pytest.mark.parametrize("part", [None, "attn", "mlp", "moe"])
    @pytest.mark.parametrize("count", [1, 8, 128])
    def test_an_all_to_all_beside_the_reductions_of_all_layers_leaves_them_tensor_parallel(
        self, count: int, part: str | None
    ) -> None:
        """As vLLM's 64 layers, whose instructions name no part: 128 all-reduces, and one of the embedding."""
        layers = [seen("all-reduce", [2], 0)] * 128 + [seen("all-reduce", [2], 0, "embed")]
        gathers = [seen("all-gather", [2], 0)] * 2
        [sister] = infer_axes(layers + gathers, 2)
        [axis] = infer_axes(layers + gathers + [seen("all-to-all", [2], 0, part)] * count, 2)
        assert sister.axis == axis.axis == "tp"

    @pytest.mark.parametrize("part", [None, "attn"])
    @pytest.mark.parametrize("count", [64, 65, 128])
    def test_reductions_of_every_layer_are_no_sequence_parallelism(self, count: int, part: str | None) -> None:
        """Ulysses has two to four all-to-alls per layer, but whole weights, so nothing to sum up."""
        sums = [seen("all-reduce", [2], 0)] * 64
        [axis] = infer_axes(sums + [seen("all-to-all", [2], 0, part)] * count, 2)
        assert axis.axis == "tp"

    def test_experts_beside_tensor_parallel_attention_on_one_axis_are_both(self) -> None:
        [axis] = infer_axes([seen("all-reduce", [4], 0, "attn")] * 32 + [seen("all-to-all", [4], 0, "moe")] * 64, 4)
        assert axis.axis is None
        assert 0.4 < axis.confidence < MIN_CONFIDENCE
        assert axis.evidence == "64 all-to-all in moe, 32 all-reduce in attn"

    def test_an_all_to_all_without_a_name_is_of_experts_only_where_there_are_some(self) -> None:
        nameless = [seen("all-to-all", [4], 0)] * 128
        [axis] = infer_axes(nameless, 4)
        assert axis.axis is None
        [axis] = infer_axes(nameless, 4, has_experts=True)
        assert axis.axis == "ep"

    def test_weights_by_hand(self) -> None:
        """Of eight and two: the two count half."""
        [axis] = infer_axes([seen("all-to-all", [4], 0, "attn")] * 8 + [seen("all-reduce", [4], 0, "mlp")] * 2, 4)
        of_both = zip(LIKELIHOODS["all-to-all", "attn"], LIKELIHOODS["all-reduce", "mlp"], strict=True)
        chances = [a * b**0.5 for a, b in of_both]
        assert axis.axis == "sp"
        assert axis.confidence == pytest.approx(max(chances) / sum(chances))

    def test_two_axes_never_have_one_name(self) -> None:
        both = [seen("all-reduce", [2, 2], i, "attn") for i in (0, 1)]
        axes = infer_axes(both, 4)
        assert len({a.axis for a in axes if a.axis}) == sum(a.axis is not None for a in axes)
        assert all(a.confidence <= 0.5 for a in axes)

    def test_a_collective_over_two_axes_counts_where_nothing_else_does(self) -> None:
        joint = CollectiveSeen("all-gather", mesh_groups([2, 2], {0, 1}), "lm_head")
        [outer, inner] = infer_axes([joint, seen("all-reduce", [2, 2], 1, "attn")], 4)
        assert inner.evidence == "1 all-reduce in attn"
        assert outer.evidence == "1 all-gather in lm_head"


class TestWhatDoesNotFit:
    def test_groups_of_no_mesh(self) -> None:
        assert infer_axes([CollectiveSeen("all-reduce", ((0, 3), (1, 2)), "attn")], 4) == []

    def test_cuts_that_contradict_each_other(self) -> None:
        two = CollectiveSeen("all-reduce", mesh_groups([3, 2], {1}), "attn")
        three = CollectiveSeen("all-reduce", mesh_groups([2, 3], {1}), "attn")
        assert infer_axes([two, three], 6) == []

    def test_some_that_do_not_fit_lower_the_confidence(self) -> None:
        good = [seen("all-reduce", [4], 0, "attn")] * 3
        odd = CollectiveSeen("all-reduce", ((0, 3), (1, 2)), "attn")
        assert infer_axes([*good, odd], 4)[0].confidence == pytest.approx(0.75 * infer_axes(good, 4)[0].confidence)

    def test_one_device_has_no_axes(self) -> None:
        assert infer_axes([], 1) == []
        assert infer_axes([CollectiveSeen("all-reduce", ((0,),), None)], 1) == []

    @given(st.lists(st.lists(st.lists(st.integers(0, 7), max_size=8).map(tuple), max_size=8).map(tuple), max_size=5))
    def test_any_groups_give_axes_that_multiply_to_the_world_or_none(self, many: list[Groups]) -> None:
        axes = infer_axes([CollectiveSeen("all-reduce", g, None) for g in many], 8)
        size = 1
        for axis in axes:
            size *= axis.size
            assert 0 <= axis.confidence <= 1
        assert size in (8, 1)


def axes_of(capture: Path, warehouse: Path) -> tuple[dict[int, str], list[tuple[str, int, int]], list[str]]:
    """Axis of every collective, the mesh axes, and the quality flags of a capture's run."""
    entry = ingest_one(capture, warehouse).entry
    tables = {name: Lake(warehouse).paths(entry, name) for name in ("collectives", "mesh_axes", "quality_flags")}
    axes = pq.read_table(tables["collectives"][0], columns=["event_id", "axis"]).to_pydict()
    mesh = pq.read_table(tables["mesh_axes"][0]).to_pylist()
    flags = [f for path in tables["quality_flags"] for f in pq.read_table(path, columns=["flag"]).column(0).to_pylist()]
    by_event = dict(zip(axes["event_id"], axes["axis"], strict=True))
    return by_event, [(m["axis"], m["size"], m["stride"]) for m in mesh], flags


class TestRealCaptures:
    @pytest.mark.parametrize(
        "name", [p.name for p in sorted(CAPTURES.iterdir()) if p.is_dir() and "hosts" not in p.name]
    )
    def test_what_the_manifest_tells_is_what_would_have_been_guessed(self, name: str, tmp_path: Path) -> None:
        shutil.copytree(CAPTURES / name / "plugins", tmp_path / "bare" / "plugins")
        told, told_mesh, told_flags = axes_of(CAPTURES / name, tmp_path / "told")
        guessed, guessed_mesh, flags = axes_of(tmp_path / "bare", tmp_path / "guessed")
        assert guessed == told
        assert guessed_mesh == told_mesh
        assert "inferred_axes" in flags
        assert "inferred_axes" not in told_flags

    def test_hosts_with_programs_of_their_own_are_an_axis_without_a_name(self, tmp_path: Path) -> None:
        """The manifest says pp=2,tp=2; that the hosts are stages is in none of their collectives."""
        capture = CAPTURES / "llama-pp2tp2-b4-i16-o5-hosts2"
        shutil.copytree(capture / "plugins", tmp_path / "bare" / "plugins")
        told, told_mesh, _ = axes_of(capture, tmp_path / "told")
        guessed, guessed_mesh, flags = axes_of(tmp_path / "bare", tmp_path / "guessed")
        assert guessed == told
        assert told_mesh == [("pp", 2, 2), ("tp", 2, 1)]
        assert guessed_mesh == [(None, 2, 2), ("tp", 2, 1)]
        assert "inferred_axes" in flags

    def test_shared_captures(self, shared_traces: Path, tmp_path: Path) -> None:
        checked = 0
        for described in sorted((shared_traces / "cpu").glob("*.run.json")):
            name = described.name.removesuffix(".run.json")
            sizes = json.loads(described.read_text()).get("par")
            capture = described.with_name(f"{name}.xplane.pb")
            if not sizes or not capture.is_file():
                continue
            expected = [(a, sizes[a]) for a in ("dp", "ep", "tp") if sizes.get(a, 1) > 1]
            _, mesh, _ = axes_of(capture, tmp_path / name)
            assert [(axis, size) for axis, size, _ in mesh] == expected, name
            checked += 1
        assert checked >= 5
