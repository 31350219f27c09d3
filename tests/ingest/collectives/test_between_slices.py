"""Collectives between slices: sends and recvs that the Megascale runtime carries over the data center network.

What a program says of them follows public dumps of multislice programs: a psum over the slices is one send and one recv
with the same rendezvous, and a ppermute one pair of type ONE_TO_ONE.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hlo_writer import Module
from xplane_builder import Space, Unsigned

from tracewarehouse.warehouse import Warehouse

US = 1_000_000
FUSION = "%fusion.1 = f32[64]{0} fusion(f32[64]{0} %a), kind=kLoop, calls=%f"
ROWS = """SELECT kind, axis, link, start_ps // 1000000, end_ps // 1000000, exposed_ps // 1000000,
                 exposed_added_ps // 1000000, message_bytes, wire_bytes, group_size
          FROM collectives ORDER BY device_id, start_ps"""
SILENT = ", is_host_transfer=true"
Op = tuple[str, int, int]


def said(kind: str | None, name: str | None = "x.1_1", target: str | None = None, handler: str = "megascale") -> str:
    """What a send, recv or done says of its transfer."""
    attributes = [f'_xla_host_transfer_handler_name="xla_{handler}_runtime"']
    attributes += [f'_xla_host_transfer_rendezvous="{name}"'] if name else []
    attributes += [f'_xla_megascale_transfer_type="{kind}"'] if kind else []
    attributes += [f"_xla_megascale_target={target}"] if target else []
    return f", is_host_transfer=true, frontend_attributes={{{','.join(attributes)}}}"


def halves(sent: int, received: int, of_starts: str, of_dones: str, n: int = 1) -> tuple[str, str, str, str]:
    """The text of a send of so many elements, its done, a recv and its done."""
    s, r = f"(f32[{sent}]{{0}}, u32[], token[])", f"(f32[{received}]{{0}}, u32[], token[])"
    return (
        f"%send.{n} = {s} send(f32[{sent}]{{0}} %x, token[] %t), channel_id={2 * n}{of_starts}",
        f"%send-done.{n} = token[] send-done({s} %send.{n}), channel_id={2 * n}{of_dones}",
        f"%recv.{n} = {r} recv(token[] %t), channel_id={2 * n + 1}{of_starts}",
        f"%recv-done.{n} = (f32[{received}]{{0}}, token[]) recv-done({r} %recv.{n}), channel_id={2 * n + 1}{of_dones}",
    )


def capture(*ops: Op, devices: int = 1, proto: bytes | None = None) -> Space:
    """The same ops (text, start and end in us) on every device, in one execution of a program."""
    space = Space()
    for device in range(devices):
        tpu = space.tpu(device)
        tpu.modules.event("jit_train_step(7)", 0, max(end for *_, end in ops) * US)
        for text, start, end in ops:
            metadata = tpu.instruction(text, hlo_category="op", program_id=Unsigned(7))
            tpu.ops.event(metadata, start * US, (end - start) * US)
    if proto:
        space.hlo_protos({"jit_train_step": (7, proto)})
    return space


def usual(send: str, send_done: str, recv: str, recv_done: str) -> list[Op]:
    """The two starts for 2 us each, 300 us of compute, and dones of 200 and 10 us."""
    return [(send, 0, 2), (recv, 2, 4), (FUSION, 4, 304), (recv_done, 304, 504), (send_done, 504, 514)]


@pytest.mark.parametrize("speak", [True, False], ids=["", "silent dones"])
@pytest.mark.parametrize(
    ("of", "target", "sent", "received", "kind", "message", "wire", "size"),
    [
        ("ALL_REDUCE", "{1,2}x{0:3}", 64, 64, "all-reduce", 256, 256, 2),
        ("ALL_REDUCE", "{1,2,3,4}x{0:7}", 64, 64, "all-reduce", 256, 384, 4),  # 2 x 3/4 of the message
        ("ALL_REDUCE", None, 64, 64, "all-reduce", 256, None, None),
        ("ALL_GATHER", "{1,2,3,4}x{0:7}", 64, 256, "all-gather", 1024, 768, 4),
        ("REDUCE_SCATTER", "{1,2}x{0:3}", 64, 32, "reduce-scatter", 256, 128, 2),
        ("ALL_TO_ALL", "{1,2}x{0,1}", 64, 64, "all-to-all", 256, 128, 2),
        ("ONE_TO_ONE", None, 64, 64, "collective-permute", 256, 256, 2),
    ],
)
def test_a_send_and_a_recv_are_one_collective(
    ingest: Any,
    of: str,
    target: str | None,
    sent: int,
    received: int,
    kind: str,
    message: int,
    wire: int | None,
    size: int | None,
    speak: bool,
) -> None:
    """Exposed are 2 + 2 us of the starts and 200 + 10 of the dones, also where the dones do not say what they end."""
    words = said(of, target=target)
    _, query = ingest(capture(*usual(*halves(sent, received, words, words if speak else SILENT)), devices=2))
    assert query(ROWS) == [(kind, "dcn", "dcn", 0, 514, 214, 214, message, wire, size)] * 2
    assert query("SELECT COUNT(*) FROM copies") == [(0,)]


def test_each_execution_is_one_collective_whichever_half_is_first(ingest: Any) -> None:
    send, send_done, recv, recv_done = halves(64, 64, said("ALL_REDUCE"), said("ALL_REDUCE"))
    first = [(send, 0, 2), (recv, 2, 4), (send_done, 10, 20), (recv_done, 20, 30)]
    second = [(recv, 40, 41), (send, 41, 42), (recv_done, 60, 61), (FUSION, 61, 70), (send_done, 70, 75)]
    _, query = ingest(capture(*first, *second))
    assert [row[3:7] for row in query(ROWS)] == [(0, 30, 24, 24), (40, 75, 8, 8)]


def test_two_collectives_at_once_stay_two(ingest: Any) -> None:
    """
    us       0  1  2  3  4     10  12   20   25
    a.1      [s)   [r)         [rd )         sd lacks: its window ends with rd
    b.2         [s)   [r)           [sd )[rd )
    """
    a, _, ar, ard = halves(64, 64, said("ALL_REDUCE", "a.1_1"), said("ALL_REDUCE", "a.1_1"), 1)
    b, bd, br, brd = halves(32, 32, said("ALL_REDUCE", "b.2_2"), said("ALL_REDUCE", "b.2_2"), 2)
    ops = [(a, 0, 1), (b, 1, 2), (ar, 2, 3), (br, 3, 4), (ard, 10, 12), (bd, 12, 20), (brd, 20, 25)]
    _, query = ingest(capture(*ops))
    assert [row[3:8] for row in query(ROWS)] == [(0, 12, 6, 4, 256), (1, 25, 18, 15, 128)]


def test_what_cannot_be_joined_is_a_send_and_a_recv(ingest: Any) -> None:
    _, query = ingest(capture(*usual(*halves(64, 64, said("ALL_REDUCE", None), said("ALL_REDUCE", None)))))
    assert query(ROWS) == [
        ("send", "dcn", "dcn", 0, 514, 214, 12, 256, 256, 2),
        ("recv", "dcn", "dcn", 2, 504, 202, 202, 256, 0, 2),
    ]


def test_a_lone_send_stands_for_the_collective(ingest: Any) -> None:
    send, send_done, *_ = halves(64, 64, said("ONE_TO_ONE"), said("ONE_TO_ONE"))
    _, query = ingest(capture((send, 0, 2), (FUSION, 2, 10), (send_done, 10, 15)))
    assert query(ROWS) == [("collective-permute", "dcn", "dcn", 0, 15, 7, 7, 256, 256, 2)]


def test_a_transfer_to_the_host_is_no_collective(ingest: Any) -> None:
    words = said(None, handler="tf")
    _, query = ingest(capture(*usual(*halves(64, 64, words, words))))
    assert query(ROWS) == []
    assert query("SELECT COUNT(*) FROM copies") == [(2,)]


def test_the_proto_says_it_where_the_text_breaks_off(ingest: Any) -> None:
    texts = halves(64, 64, said("ALL_REDUCE", target="{1,2}x{0:3}"), SILENT)
    module = Module()
    module.computation(1, "%x = f32[64]{0} parameter(0)", "%t = token[] after-all()", *texts)
    for instruction in module.proto.hlo_module.computations[0].instructions:
        if instruction.opcode in (b"send", b"recv"):
            for key, value in (
                ("_xla_host_transfer_handler_name", "xla_megascale_runtime"),
                ("_xla_host_transfer_rendezvous", "x.1_1"),
                ("_xla_megascale_transfer_type", "ALL_REDUCE"),
                ("_xla_megascale_target", "{1,2}x{0:3}"),
            ):
                instruction.frontend_attributes.map.add(key=key.encode(), value=value.encode())
    cut = [text.split(", channel_id")[0] for text in texts]
    _, query = ingest(capture(*usual(*cut), proto=module.encode()))
    assert query(ROWS) == [("all-reduce", "dcn", "dcn", 0, 514, 214, 214, 256, 256, 2)]


def test_a_compiled_program_has_one_collective(tmp_path: Path) -> None:
    lines = "\n  ".join(halves(64, 64, said("ALL_REDUCE", target="{1,2}x{0:3}"), said("ALL_REDUCE")))
    program = tmp_path / "step.hlo.txt"
    program.write_text(
        "HloModule step, num_partitions=4\n\nENTRY %main (x: f32[64]) -> f32[64] {\n"
        f"  %x = f32[64]{{0}} parameter(0)\n  %t = token[] after-all()\n  {lines}\n"
        "  ROOT %out = f32[64]{0} get-tuple-element(%recv-done.1), index=0\n}\n"
    )
    warehouse = Warehouse(tmp_path / "w")
    warehouse.ingest(program)
    rows = warehouse.query("SELECT device_id, kind, link, message_bytes, wire_bytes FROM main.collectives").rows()
    assert sorted(rows) == [(device, "all-reduce", "dcn", 256, 256) for device in range(4)]


def test_all_four_ops_are_those_of_the_collective(tmp_path: Path) -> None:
    space = capture(*usual(*halves(64, 64, said("ALL_REDUCE"), said("ALL_REDUCE"))))
    warehouse = Warehouse(tmp_path / "w")
    warehouse.ingest(space.write(tmp_path / "x.xplane.pb"))
    sql = (
        "SELECT name, kind, axis FROM models.communication_ops JOIN models.leaf_ops USING (run_id, event_id) ORDER BY 1"
    )
    names = ("recv-done.1", "recv.1", "send-done.1", "send.1")
    assert warehouse.query(sql).rows() == [(name, "all-reduce", "dcn") for name in names]


def test_metrics_know_the_network(tmp_path: Path) -> None:
    space = capture(*usual(*halves(64, 64, said("ALL_REDUCE", target="{1,2}x{0:3}"), said("ALL_REDUCE"))), devices=2)
    warehouse = Warehouse(tmp_path / "w")
    warehouse.ingest(space.write(tmp_path / "x.xplane.pb"))

    def rows(sql: str) -> list[tuple[Any, ...]]:
        return warehouse.query(sql).rows()

    assert rows("SELECT link, sent_bytes, executions FROM metrics.traffic_by_link") == [("dcn", 512, 2)]
    assert rows("SELECT bound_by, transfer_share, arrival_share FROM metrics.collective_attribution") == [
        ("overlap", 214 / 514, None)
    ]
    assert {row[0] for row in rows("SELECT exposed_ms FROM metrics.exposed_communication")} == {0.214}
    reasons = dict(rows("SELECT metric, reason FROM metrics.missing"))
    assert not any("ran no collective" in reason for reason in reasons.values())
    assert reasons["ici_utilization"].startswith("every collective runs between slices")
