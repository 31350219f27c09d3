from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo.shapes import (
    ELEMENT_BITS,
    MAX_BYTES,
    MAX_DEPTH,
    PRIMITIVE_TYPES,
    Shape,
    array_shape,
    parse_shape,
)


@pytest.mark.parametrize(
    ("text", "canonical", "byte_size", "dtype"),
    [
        ("bf16[1024,5120]{1,0:T(8,128)(2,1)S(1)}", "bf16[1024,5120]", 10_485_760, "bf16"),
        ("f32[]", "f32[]", 4, "f32"),
        ("f32[5,1024,1024,256]{3,2,1,0:T(8,128)S(5)}", "f32[5,1024,1024,256]", 5 * 1024 * 1024 * 256 * 4, "f32"),
        ("pred[1024]{0:T(1024)(128)(4,1)S(1)}", "pred[1024]", 1024, "pred"),
        ("s4[3]{0:E(4)}", "s4[3]", 2, "s4"),
        ("u2[5]", "u2[5]", 2, "u2"),
        ("s1[9]", "s1[9]", 2, "s1"),
        ("f4e2m1fn[7]", "f4e2m1fn[7]", 4, "f4e2m1fn"),
        ("f8e4m3b11fnuz[3]", "f8e4m3b11fnuz[3]", 3, "f8e4m3b11fnuz"),
        ("f8e8m0fnu[16]", "f8e8m0fnu[16]", 16, "f8e8m0fnu"),
        ("c64[2,2]", "c64[2,2]", 32, "c64"),
        ("c128[1]", "c128[1]", 16, "c128"),
        ("f32[0,1000000000000000000]", "f32[0,1000000000000000000]", 0, "f32"),
        ("token[]", "token[]", 0, "token"),
        ("opaque[]", "opaque[]", 0, "opaque"),
        ("()", "()", 0, "tuple"),
        ("(f32[2]{0}, s32[]{:S(2)})", "(f32[2],s32[])", 12, "f32"),
        ("((f32[2]{0}), /*index=1*/(s8[100]), ())", "((f32[2]),(s8[100]),())", 108, "s8"),
        ("(s4[1], s4[1])", "(s4[1],s4[1])", 2, "s4"),
        ("f32[<=16,8]{1,0}", "f32[<=16,8]", 512, "f32"),
        ("f32[?,8]", "f32[?,8]", None, "f32"),
        ("f99x[4]", "f99x[4]", None, "f99x"),
        ("b(f32[4]{0})", "f32[4]", 16, "f32"),
        ("f32[4]{0:D(D)P(f32[2]{0})}", "f32[4]", 16, "f32"),
    ],
)
def test_text_size_and_dtype(text: str, canonical: str, byte_size: int | None, dtype: str) -> None:
    shape = parse_shape(text)
    assert (shape.text, shape.byte_size, shape.dtype) == (canonical, byte_size, dtype)
    assert parse_shape(canonical) == shape


def test_leaves_of_nested_tuples_are_in_order() -> None:
    leaves = parse_shape("((f32[2], (s8[1], ())), u32[])").leaves
    assert [leaf.text for leaf in leaves] == ["f32[2]", "s8[1]", "u32[]"]


def test_dynamic_dimensions() -> None:
    shape = parse_shape("f32[<=16,?,3]")
    assert shape.dimensions == (16, None, 3)
    assert shape.dynamic == (True, True, False)
    assert parse_shape("f32[16,3]").dynamic == ()


def test_dtype_of_a_tuple_is_that_of_its_largest_element() -> None:
    assert parse_shape("(u32[], bf16[8], f32[2])").dtype == "bf16"
    assert parse_shape("(f32[2], s32[2])").dtype == "f32"


def test_every_primitive_type_has_a_size() -> None:
    assert set(PRIMITIVE_TYPES.values()) == set(ELEMENT_BITS)
    assert len(set(PRIMITIVE_TYPES.values())) == len(PRIMITIVE_TYPES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f32",
        "f32[",
        "f32[2",
        "f32[-1]",
        "f32[a]",
        "f32[2]{0",
        "f32[2] x",
        "(f32[2]",
        "(f32[2],",
        "(f32[2],)",
        "f32[2])",
        "[2]",
        "F32[2]",
        "f32[1,,2]",
        "f32[" + "9" * 5000 + "]",
        "(" * 1000,
        "(" * (MAX_DEPTH + 1) + ")" * (MAX_DEPTH + 1),
    ],
)
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(MalformedError):
        parse_shape(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("s8[4398046511104]", MAX_BYTES),
        ("s8[4398046511105]", None),
        ("f32[1152921504606846976]", None),
        ("f32[999999999999,999999999999,999999999999]", None),
        ("f32[999999999999,999999999999,0]", 0),
        ("(f32[2], s8[1152921504606846976])", None),
        ("(s8[2199023255552], s8[2199023255552])", MAX_BYTES),
        ("(s8[2199023255552], s8[2199023255552], s8[1])", None),
    ],
)
def test_more_than_any_memory_is_a_shape_of_unknown_size(text: str, size: int | None) -> None:
    shape = parse_shape(text)
    assert shape.byte_size == size
    assert shape.is_absurd == (size is None)
    assert shape.text == text.replace(" ", "")


def test_a_long_list_of_huge_sizes_costs_nothing() -> None:
    assert parse_shape("f32[" + ",".join(["9" * 19] * 100_000) + "]").is_absurd


def test_negative_dimensions_are_refused() -> None:
    with pytest.raises(MalformedError, match="negative"):
        array_shape("f32", (-1,))


ARRAYS = st.builds(
    lambda element, sizes: array_shape(
        element, tuple(size for size, _ in sizes), tuple(dynamic for _, dynamic in sizes)
    ),
    st.sampled_from(sorted(ELEMENT_BITS)),
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 300)), st.booleans()), max_size=5),
)
SHAPES = st.recursive(
    ARRAYS, lambda inner: st.lists(inner, max_size=4).map(lambda e: Shape("tuple", elements=tuple(e))), max_leaves=12
)


@given(SHAPES)
def test_text_round_trips(shape: Shape) -> None:
    assert parse_shape(shape.text) == shape
