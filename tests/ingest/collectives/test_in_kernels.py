"""Collectives that are part of an op that computes: fused by the compiler, or sent by a kernel itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hlo_writer import Module
from xplane_builder import Space, Unsigned

from tracewarehouse.exports.chakra import export_chakra
from tracewarehouse.ingest.hlo.instruction import is_communicating
from tracewarehouse.ingest.hlo.proto import read_module
from tracewarehouse.warehouse import Warehouse

US = 1_000_000
PARAMETERS = ("%p = bf16[4,64]{1,0} parameter(0)", "%q = bf16[8,8]{1,0} parameter(1)")
SHAPE = "(bf16[8,64]{1,0}, bf16[8,8]{1,0})"
COLLECTIVES = """SELECT kind, group_size, message_bytes, wire_bytes, channel_id, window_source, start_ps // 1000000,
                        end_ps // 1000000, exposed_ps, exposed_added_ps FROM collectives ORDER BY device_id, start_ps"""


def gather(number: int, channel: int | None, operand: str = "p") -> str:
    """An all-gather of 1,024 bytes between two devices."""
    of_channel = f", channel_id={channel}" if channel else ""
    return (
        f"%all-gather.{number} = bf16[8,64]{{1,0}} all-gather(bf16[4,64]{{1,0}} %{operand}){of_channel}, "
        "replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true"
    )


def fusion(number: int, computation: str = "fc") -> str:
    """A fusion of a product with what its computation holds."""
    operands = "bf16[4,64]{1,0} %p, bf16[8,8]{1,0} %q"
    return f"%fusion.{number} = {SHAPE} fusion({operands}), kind=kOutput, calls=%{computation}"


def capture(*ops: tuple[str, int, int], proto: bytes, category: str = "convolution fusion") -> Space:
    """The same ops (text, start and end in us) on two devices."""
    space = Space()
    for device in range(2):
        tpu = space.tpu(device)
        tpu.modules.event("jit_h(11)", 0, max(end for *_, end in ops) * US)
        for text, start, end in ops:
            of_op = "all-gather" if " all-gather(" in text else category
            metadata = tpu.instruction(text, hlo_category=of_op, program_id=Unsigned(11), flops=64, model_flops=64)
            tpu.ops.event(metadata, start * US, (end - start) * US)
    space.hlo_protos({"jit_h": (11, proto)})
    return space


def program(*computations: tuple[str, ...], entry: tuple[str, ...], calls: dict[str, int]) -> bytes:
    """A program of fused computations, numbered from 1, and what the device executes."""
    module = Module()
    for number, texts in enumerate(computations, 1):
        parameters = {t: t.replace("%", f"%c{number}.") for t in PARAMETERS}
        module.computation(number, *(parameters.get(t, t.replace("%p)", f"%c{number}.p)")) for t in texts))
    module.computation(len(computations) + 1, *PARAMETERS, *entry, calls=calls)
    return module.encode()


def test_a_collective_in_a_product_is_one_collective(ingest: Any) -> None:
    """The op of 30 us computes all the time, so nothing is exposed, and what it gathers is not a transfer of 30 us."""
    proto = program((*PARAMETERS, gather(50, 7)), entry=(fusion(9),), calls={"fusion.9": 1})
    _, query = ingest(capture((fusion(9), 0, 30), (fusion(9), 30, 50), proto=proto))
    rows = [("all-gather", 2, 1024, 512, 7, "fused op", *times, 0, 0) for times in ((0, 30), (30, 50))]
    assert query(COLLECTIVES) == rows * 2
    assert query("SELECT op_class, operand_dtype FROM instructions WHERE opcode = 'fusion'") == [("compute", "bf16")]
    assert query("SELECT COUNT(*) FROM traffic") == [(2,)]


@pytest.mark.parametrize(
    ("computations", "entry", "calls"),
    [
        # the collective itself has the channel
        (((*PARAMETERS, gather(50, 7)),), (gather(1, 7), fusion(9)), {"fusion.9": 1}),
        # two fusions carry it on, as where the compiler spreads it
        (
            ((*PARAMETERS, gather(50, 7)), (*PARAMETERS, gather(51, 7))),
            (fusion(9), fusion(10)),
            {"fusion.9": 1, "fusion.10": 2},
        ),
        # nothing tells whether another one is the same
        (((*PARAMETERS, gather(50, None)),), (fusion(9),), {"fusion.9": 1}),
        # there is none
        (((*PARAMETERS,),), (fusion(9),), {"fusion.9": 1}),
    ],
    ids=["stands alone too", "spread", "no channel", "none"],
)  # fmt: skip
def test_a_collective_that_others_have_too_is_theirs(
    computations: tuple[tuple[str, ...], ...], entry: tuple[str, ...], calls: dict[str, int]
) -> None:
    assert read_module(program(*computations, entry=entry, calls=calls)).fused_collectives == frozenset()


def test_beside_a_fused_collective_others_are_exposed(ingest: Any) -> None:
    """
    us       0         10         20         30
    fusion.9 [ gather 7 )
    gather.1            [ gather 8 )
    fusion.9                       [ gather 7 )
    """
    proto = program((*PARAMETERS, gather(50, 7)), entry=(gather(1, 8), fusion(9)), calls={"fusion.9": 1})
    _, query = ingest(capture((fusion(9), 0, 10), (gather(1, 8), 10, 20), (fusion(9), 20, 30), proto=proto))
    of_device = [row[4:] for row in query(COLLECTIVES)][:3]
    assert of_device == [
        (7, "fused op", 0, 10, 0, 0),
        (8, "op", 10, 20, 10 * US, 10 * US),
        (7, "fused op", 20, 30, 0, 0),
    ]


def test_metrics_of_transfers_leave_fused_collectives_out(tmp_path: Path) -> None:
    proto = program((*PARAMETERS, gather(50, 7)), entry=(gather(1, 8), fusion(9)), calls={"fusion.9": 1})
    ops = (fusion(9), 0, 10), (gather(1, 8), 10, 12)
    warehouse = Warehouse(tmp_path / "w")
    warehouse.ingest(capture(*ops, proto=proto).write(tmp_path / "x.xplane.pb"))

    def rows(sql: str) -> list[tuple[Any, ...]]:
        return warehouse.query(sql).rows()

    assert rows("SELECT transfer_us, executions FROM metrics.collective_transfer") == [(2.0, 1)]
    assert rows("SELECT SUM(executions_per_step) FROM metrics.collective_count") == [(2.0,)]
    assert rows("SELECT DISTINCT total_ms FROM metrics.exposed_communication") == [(0.002,)]
    assert rows("SELECT overlap_share, executions FROM metrics.collective_attribution") == [(20 / 24, 4)]


def test_a_run_of_fused_collectives_alone_says_so(tmp_path: Path) -> None:
    proto = program((*PARAMETERS, gather(50, 7)), entry=(fusion(9),), calls={"fusion.9": 1})
    warehouse = Warehouse(tmp_path / "w")
    warehouse.ingest(capture((fusion(9), 0, 10), proto=proto).write(tmp_path / "x.xplane.pb"))
    missing = dict(warehouse.query("SELECT metric, reason FROM metrics.missing").rows())
    for metric in ("collective_transfer", "ici_utilization", "hockney"):
        assert missing[metric].startswith("every collective is part of an op that computes")


def test_chakra_takes_the_op_for_what_it_computes(tmp_path: Path) -> None:
    proto = program((*PARAMETERS, gather(50, 7)), entry=(fusion(9),), calls={"fusion.9": 1})
    warehouse = Warehouse(tmp_path / "w")
    run = warehouse.ingest(capture((fusion(9), 0, 10), proto=proto).write(tmp_path / "x.xplane.pb"))[0].run_id
    export = export_chakra(warehouse, run, tmp_path / "out")
    assert [str(w) for w in export.warnings] == [
        "2 executions of all-gather are part of ops that compute, and count as compute"
    ]


PALLAS = '%ring.3 = bf16[8,8]{1,0} custom-call(bf16[8,8]{1,0} %x), custom_call_target="tpu_custom_call"'


@pytest.mark.parametrize(
    ("config", "sends"),
    [
        ('{"custom_call_config": {"body": "x", "has_communication": true}}', True),
        ('"{\\"custom_call_config\\": {\\"body\\": \\"x\\", \\"collective_id\\": 0}}"', True),
        ('{"custom_call_config": {"body": "x", "has_communication": false}}', False),
        ('{"custom_call_config": {"body": "has_communication"}}', False),
        ("", False),
    ],
)
def test_what_says_that_a_kernel_communicates(config: str, sends: bool) -> None:
    assert is_communicating(config) is sends


@pytest.mark.parametrize("source", ["text", "proto", "nothing"])
def test_a_kernel_that_sends_data_itself_is_flagged(ingest: Any, source: str) -> None:
    config = '{"custom_call_config":{"body":"eA==","collective_id":3}}'
    text = f"{PALLAS}, backend_config={config}" if source == "text" else PALLAS
    module = Module()
    module.computation(1, "%x = bf16[8,8]{1,0} parameter(0)", PALLAS)
    if source == "proto":
        module.proto.hlo_module.computations[0].instructions[1].backend_config = config.encode()
    _, query = ingest(capture((text, 0, 30), (fusion(1), 30, 40), proto=module.encode(), category="custom-call"))
    found = query("SELECT detail FROM quality_flags WHERE flag = 'kernel_communication'")
    sentence = "kernels of 75% of the compute time send data to other devices themselves (ring 75%)"
    assert found == ([] if source == "nothing" else [(sentence,)])
