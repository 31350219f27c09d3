"""Makes a mesh of the devices of a run, and splits tensors over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch_xla
import torch_xla.distributed.spmd as spmd
from torch_xla.distributed.spmd.xla_sharding import unwrap_sharded_tensor

from tracewarehouse.collect.parallel.partition import Axes, Partition, device_slices
from tracewarehouse.collect.run_spec import MESH_AXES, RunSpec
from tracewarehouse.collect.torch_xla.operations import constrain
from tracewarehouse.collect.torch_xla.transformers_model import as_tensor


class DeviceMesh:
    """The run's devices as a torch_xla SPMD mesh.

    Partitions may name every axis of the collector; an axis of size 1 splits nothing and is left out.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.sizes = {axis: spec.axis(axis) for axis in MESH_AXES}
        self._coordinates = spec.mesh.coordinates()
        ids = np.array(spec.mesh.device_ids or range(spec.mesh.size))
        self.xla_mesh = spmd.Mesh(ids, tuple(self.sizes.values()), tuple(self.sizes))
        self.device = torch_xla.device()

    def place(self, tensor: Any, partition: Partition) -> Any:
        """Move a host tensor to the devices, split as given."""
        placed = tensor.to(self.device)
        spmd.mark_sharding(placed, self.xla_mesh, self.resolve(partition))
        return placed

    def assemble(self, shape: tuple[int, ...], partition: Partition, read: Callable[[tuple[slice, ...]], Any]) -> Any:
        """Return a tensor on the devices of all hosts; each host reads only the parts of its own devices.

        `read` returns a slice of it in numpy, and is called once per distinct slice.
        """
        parts: dict[str, Any] = {}
        shards = []
        blocks = [n.stop for n in device_slices(shape, partition, self.sizes, {})]
        # This host's devices, in the order in which torch_xla has them.
        for device in (int(name.rpartition(":")[2]) for name in torch_xla._XLAC._xla_get_runtime_devices()):
            slices = device_slices(shape, partition, self.sizes, self._coordinates[device])
            if str(slices) not in parts:
                part = as_tensor(read(slices))
                # Every shard has the size of the first; shards at the end of a dimension that does not divide are
                # padded.
                missing = [(0, block - n) for block, n in zip(blocks, part.shape, strict=True)]
                is_short = any(n for _, n in missing)
                padding = [n for pair in reversed(missing) for n in pair]
                parts[str(slices)] = torch.nn.functional.pad(part, padding) if is_short else part.contiguous()
            shards.append(parts[str(slices)])
        sharding = self.xla_mesh.get_op_sharding(self.resolve(partition))
        return torch_xla._XLAC._global_tensor_from_cpu_shards(shards, sharding, torch.Size(shape))

    def split(self, parameter: Any, partition: Partition) -> None:
        """Tell how a tensor that is already on the devices is split."""
        spmd.mark_sharding(parameter, self.xla_mesh, self.resolve(partition))

    def constrain(self, value: Any, partition: Partition) -> Any:
        """Tell the partitioner how a value inside the program is split; it inserts the collectives that split it so.

        Inside a pipeline stage, the partition is that of one stage.
        """
        return constrain(self._constrain, value, partition)

    def _constrain(self, value: Any, partition: Partition) -> Any:
        return unwrap_sharded_tensor(spmd.mark_sharding(value, self.xla_mesh, self.resolve(partition)))

    def part(self, value: Any, partition: Partition) -> Any:
        """Begin a manual region, in which operations work on one device: return this device's part of a value."""
        return unwrap_sharded_tensor(spmd.enable_manual_sharding(value, self.resolve(partition), mesh=self.xla_mesh))

    def whole(self, part: Any, partition: Partition, shape: Any) -> Any:
        """End a manual region: return the value of this shape from the devices' parts."""
        return unwrap_sharded_tensor(
            spmd.disable_manual_sharding(part, self.resolve(partition), shape, mesh=self.xla_mesh)
        )

    def resolve(self, partition: Partition) -> Partition:
        """Return the partition with only the axes that this mesh has."""
        return tuple(self._present(axes) for axes in partition)

    def groups(self, axis: str) -> list[list[int]]:
        """Return the device ids of every group along one axis."""
        logical = self.xla_mesh.get_logical_mesh()
        moved = np.moveaxis(logical, list(self.sizes).index(axis), -1)
        return [[int(d) for d in group] for group in moved.reshape(-1, self.sizes[axis])]

    def _present(self, axes: Axes) -> Axes:
        names = (axes,) if isinstance(axes, str) else axes or ()
        kept = tuple(a for a in names if self.sizes[a] > 1)
        return kept[0] if len(kept) == 1 else kept or None
