"""Gives the trace the names and arguments of instructions, and their places in the model."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa

from tracewarehouse.exports.perfetto.columns import coded, integers, optional
from tracewarehouse.exports.perfetto.lanes import Int64
from tracewarehouse.exports.perfetto.packets import PacketWriter
from tracewarehouse.exports.perfetto.selected_run import SelectedRun
from tracewarehouse.exports.perfetto.wire import Encoded, joined


class Instructions:
    """The instructions of a run, by their ids."""

    def __init__(self, run: SelectedRun, writer: PacketWriter) -> None:
        self._run = run
        self._writer = writer

    @cached_property
    def names(self) -> Int64:
        """The writer's number of each name."""
        return self._writer.names(self._rows.column("name").to_pylist())

    def arguments(self, device_id: int | None) -> Encoded:
        """The arguments of each instruction on a device; for device None, those that it has on every device."""
        if device_id is None:
            return self._described
        layer, parts, part = self.scopes(device_id)
        of_part = self._writer.texts("part", parts)
        return joined(
            self._described,
            self._writer.integers("layer", layer, layer < 0),
            of_part.take(pa.array(part, mask=part < 0)),
        )

    def scopes(self, device_id: int) -> tuple[Int64, list[str], Int64]:
        """The layer of each instruction on a device, the parts, and the index of its part; -1 for none."""
        instructions = self._run.arrow(
            f"SELECT instruction_id, layer, part FROM models.instruction_layers WHERE {self._run.of_run} "
            f"AND device_id = {device_id} ORDER BY instruction_id"
        )
        layer = np.full(len(self.names), -1, np.int64)
        part = layer.copy()
        numbers, no_layer = optional(instructions, "layer")
        where = integers(instructions, "instruction_id")
        layer[where] = np.where(no_layer, -1, numbers)
        parts, codes = coded(instructions.column("part"))
        part[where] = codes.fill_null(-1).to_numpy()
        return layer, parts, part

    @cached_property
    def _described(self) -> Encoded:
        """The arguments that an instruction has on every device."""
        w, instructions = self._writer, self._rows
        texts = {"hlo_category": "category", "long_name": "hlo_text", "tf_op": "op_name", "source": "source",
                 "op_class": "op_class"}  # fmt: skip
        return joined(
            *(w.texts(name, instructions.column(column).to_pylist()) for name, column in texts.items()),
            *(w.integers(name, *optional(instructions, name)) for name in ("flops", "model_flops", "bytes_accessed")),
        )

    @cached_property
    def _rows(self) -> pa.Table:
        """The instructions, each at the position that is its id."""
        return self._run.arrow(f"""
            SELECT
              instruction_id, name, category, hlo_text, op_name, source, op_class, flops, model_flops, bytes_accessed
            FROM main.instructions
            WHERE {self._run.of_run}
            ORDER BY instruction_id
        """)
