"""Writes the tracks of collectives on a device, with arrows between the ranks of an execution."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from tracewarehouse.exports.perfetto.columns import coded, integers, optional
from tracewarehouse.exports.perfetto.instructions import Instructions
from tracewarehouse.exports.perfetto.lanes import Int64
from tracewarehouse.exports.perfetto.packets import PacketWriter
from tracewarehouse.exports.perfetto.selected_run import SelectedRun
from tracewarehouse.exports.perfetto.wire import Encoded

Flows = Literal["none", "slow", "all"]

SLOW = 1.5
"""An execution of a collective is slow if it lasts longer than this many times the median of its instruction."""


class Collectives:
    """The collectives of a run.

    Args:
        run: the run.
        writer: writes the trace.
        instructions: the instructions of the run.
        flows: which executions get arrows from rank to rank.
        first_flow: number of the first arrow.
    """

    def __init__(
        self, run: SelectedRun, writer: PacketWriter, instructions: Instructions, flows: Flows, first_flow: int
    ) -> None:
        self._run = run
        self._writer = writer
        self._instructions = instructions
        self._flows = flows
        self._first_flow = first_flow

    def write(self, parent: int, device_id: int) -> None:
        """Write the collectives of a device, on a track for each kind and mesh axis."""
        collectives = self._rows
        collectives = collectives.filter(pc.equal(collectives.column("device_id"), device_id))
        if not len(collectives):
            return
        group = self._writer.track("6. Collectives", parent)
        for track in sorted(set(collectives.column("track").to_pylist())):
            self._write_track(track, group, collectives.filter(pc.equal(collectives.column("track"), track)))

    def _write_track(self, track: str, parent: int, collectives: pa.Table) -> None:
        w = self._writer
        texts = []
        for name in ("kind", "axis", "dtype", "phase"):
            values, codes = coded(collectives.column(name))
            texts.append((w.texts(name, values), codes))
        numbers = {
            name: optional(collectives, name)
            for name in (
                "group_size", "rank_in_group", "message_bytes", "wire_bytes", "exposed_ps", "instance", "step",
                "event_id",
            )
        }  # fmt: skip

        def arguments(some: Int64) -> list[Encoded]:
            place = pa.array(some)
            return [
                *(values.take(codes.take(place)) for values, codes in texts),
                *(w.integers(name, values[some], absent[some]) for name, (values, absent) in numbers.items()),
            ]

        start = integers(collectives, "start_ps")
        w.slices(
            track,
            parent,
            start,
            integers(collectives, "end_ps") - start,
            self._instructions.names[integers(collectives, "instruction_id")],
            arguments,
            integers(collectives, "flow"),
        )

    @cached_property
    def _rows(self) -> pa.Table:
        is_linked = {"none": "false", "slow": f"i.last_ps > {SLOW} * m.last_ps", "all": "true"}[self._flows]
        return self._run.arrow(f"""
            WITH ranks AS (
              SELECT *
              FROM main.collectives
              WHERE {self._run.of_run} AND {self._run.selection.of_times()} AND {self._run.selection.of_steps()}
            ),
            instances AS (
              SELECT instance, min(instruction_id) AS instruction_id, max(end_ps) - min(start_ps) AS last_ps
              FROM ranks
              GROUP BY instance
              HAVING count(*) > 1 AND instance IS NOT NULL
            ),
            medians AS (SELECT instruction_id, median(last_ps) AS last_ps FROM instances GROUP BY instruction_id)
            SELECT
              r.event_id, r.device_id, r.instruction_id, r.instance, r.kind, r.axis, r.group_size, r.rank_in_group,
              r.message_bytes, r.wire_bytes, r.exposed_ps, r.dtype, r.phase, r.step, r.start_ps, r.end_ps,
              concat_ws(' ', r.kind, r.axis) AS track,
              CAST(CASE WHEN {is_linked} THEN {self._first_flow} + r.instance ELSE 0 END AS BIGINT) AS flow
            FROM ranks AS r
            LEFT JOIN instances AS i USING (instance)
            LEFT JOIN medians AS m ON m.instruction_id = i.instruction_id
            ORDER BY r.device_id, r.start_ps, r.event_id
        """)
