"""Writes the track of layers and parts of the model on a device."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tracewarehouse.exports.perfetto.columns import integers, optional
from tracewarehouse.exports.perfetto.instructions import Instructions
from tracewarehouse.exports.perfetto.lanes import Int64
from tracewarehouse.exports.perfetto.packets import PacketWriter
from tracewarehouse.exports.perfetto.wire import Encoded


def write_name_scope(
    writer: PacketWriter, parent: int, ops: pa.Table, instructions: Instructions, device_id: int
) -> None:
    """Write a slice for each stretch of leaf ops of one layer, and in it one for each part of the model."""
    leaf = ops.filter(ops.column("is_leaf")).sort_by("start_ps")
    if not len(leaf):
        return
    layer_of, parts, part_of = instructions.scopes(device_id)
    instruction = integers(leaf, "instruction_id")
    layer, part = layer_of[instruction], part_of[instruction]
    execution, _ = optional(leaf, "execution")
    start = integers(leaf, "start_ps")
    end = start + integers(leaf, "duration_ps")
    by_layer = (np.diff(execution, prepend=-2) != 0) | (np.diff(layer, prepend=-2) != 0)
    by_part = by_layer | (np.diff(part, prepend=-2) != 0)
    stretches = []
    for is_first, scope in ((by_layer, layer), (by_part, part)):
        first = np.flatnonzero(is_first)
        stretch = np.stack([start[first], np.maximum.reduceat(end, first), scope[first], layer[first]])
        stretches.append(stretch[:, scope[first] >= 0])
    layers, parts_of_layers = stretches
    texts = [f"layer {number}" for number in layers[2].tolist()] + [parts[code] for code in parts_of_layers[2].tolist()]
    starts, ends, _, of_layer = np.concatenate(stretches, axis=1)

    def arguments(some: Int64) -> list[Encoded]:
        return [writer.integers("layer", of_layer[some], of_layer[some] < 0)]

    writer.slices("5. Name Scope", parent, starts, ends - starts, writer.names(texts), arguments)
