"""The ccl_* metrics reproduce the definitions of CCL-Bench, faults included, and nothing else may rest on them."""

from __future__ import annotations

from tracewarehouse.definitions import load_definitions

DEFINITIONS = load_definitions()
COMPATIBLE = [m for m in DEFINITIONS.metrics if m.name.startswith("ccl_")]


def test_none_is_offered_as_a_metric_of_ours() -> None:
    assert COMPATIBLE
    assert {m.header.status for m in COMPATIBLE} == {"deprecated"}
    assert all(m.header.ccl_bench for m in COMPATIBLE)


def test_no_other_definition_reads_them() -> None:
    for view in DEFINITIONS.ordered:
        if not view.name.startswith("ccl_"):
            assert [u.qualified for u in DEFINITIONS.upstream(view) if u.name.startswith("ccl_")] == []
