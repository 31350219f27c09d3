"""Declares the messages of hlo.proto and xla_data.proto that are read, and of the stat memory_access_breakdown.

It declares only the fields that are read; the parser skips the others. Strings are declared as bytes, because a
profiler's strings need not be valid UTF-8.
"""

from __future__ import annotations

from tracewarehouse.ingest.protobuf import Field, message_classes

_MESSAGES: dict[str, tuple[Field, ...]] = {
    "MemoryAccessBreakdown": (Field(1, "memory_accessed", "MemoryAccessed", is_repeated=True),),
    "MemoryAccessed": (
        Field(1, "operation_type", "int64"),
        Field(2, "memory_space", "int64"),
        Field(3, "bytes_accessed", "uint64"),
    ),
    "HloProto": (Field(1, "hlo_module", "HloModule"),),
    "PlacedHloProto": (Field(1, "hlo_module", "PlacedHloModule"),),
    "PlacedHloModule": (Field(7, "schedule", "Schedule"), Field(15, "device_assignment", "DeviceAssignment")),
    "HloModule": (
        Field(1, "name", "bytes"),
        Field(3, "computations", "HloComputation", is_repeated=True),
        Field(6, "entry_computation_id", "int64"),
        Field(7, "schedule", "Schedule"),
        Field(15, "device_assignment", "DeviceAssignment"),
        Field(17, "stack_frame_index", "StackFrameIndex"),
    ),
    "CountedHloProto": (Field(1, "hlo_module", "CountedHloModule"),),
    "CountedHloModule": (Field(3, "computations", "bytes", is_repeated=True),),
    "CountedHloComputation": (Field(2, "instructions", "bytes", is_repeated=True),),
    "Schedule": (Field(1, "sequences", "SequenceEntry", is_repeated=True),),
    "SequenceEntry": (Field(1, "key", "int64"), Field(2, "value", "Sequence")),
    "Sequence": (Field(1, "instruction_ids", "int64", is_repeated=True),),
    "HloComputation": (
        Field(1, "name", "bytes"),
        Field(2, "instructions", "HloInstruction", is_repeated=True),
        Field(5, "id", "int64"),
        Field(6, "root_id", "int64"),
    ),
    "HloInstruction": (
        Field(1, "name", "bytes"),
        Field(2, "opcode", "bytes"),
        Field(3, "shape", "Shape"),
        Field(7, "metadata", "OpMetadata"),
        Field(8, "literal", "Literal"),
        Field(11, "fusion_kind", "bytes"),
        Field(13, "tuple_index", "int64"),
        Field(14, "dimensions", "int64", is_repeated=True),
        Field(15, "window", "Window"),
        Field(16, "convolution_dimension_numbers", "ConvolutionDimensions"),
        Field(26, "channel_id", "int64"),
        Field(28, "custom_call_target", "bytes"),
        Field(30, "dot_dimension_numbers", "DotDimensions"),
        Field(35, "id", "int64"),
        Field(36, "operand_ids", "int64", is_repeated=True),
        Field(38, "called_computation_ids", "int64", is_repeated=True),
        Field(43, "backend_config", "bytes"),
        Field(47, "is_host_transfer", "bool"),
        Field(49, "replica_groups", "ReplicaGroup", is_repeated=True),
        Field(50, "feature_group_count", "int64"),
        Field(52, "source_target_pairs", "SourceTarget", is_repeated=True),
        Field(63, "comparison_direction", "bytes"),
        Field(68, "frontend_attributes", "FrontendAttributes"),
        Field(71, "use_global_device_ids", "bool"),
        Field(79, "async_execution_thread", "bytes"),
        Field(87, "collective_device_list", "CollectiveDeviceList"),
        Field(92, "iota_collective_device_list", "IotaReplicaGroupList"),
        Field(93, "mesh_axes_replica_group_list", "MeshAxesReplicaGroupList"),
    ),
    "Literal": (Field(4, "s32s", "int32", is_repeated=True),),
    "Window": (Field(1, "dimensions", "WindowDimension", is_repeated=True),),
    "WindowDimension": (
        Field(1, "size", "int64"),
        Field(2, "stride", "int64"),
        Field(3, "padding_low", "int64"),
        Field(4, "padding_high", "int64"),
        Field(5, "window_dilation", "int64"),
        Field(6, "base_dilation", "int64"),
    ),
    "ConvolutionDimensions": (
        Field(3, "kernel_input_feature_dimension", "int64"),
        Field(4, "kernel_output_feature_dimension", "int64"),
        Field(7, "input_batch_dimension", "int64"),
        Field(11, "input_spatial_dimensions", "int64", is_repeated=True),
        Field(12, "output_spatial_dimensions", "int64", is_repeated=True),
    ),
    "DotDimensions": (Field(1, "lhs_contracting_dimensions", "int64", is_repeated=True),),
    "Shape": (
        Field(2, "element_type", "int32"),
        Field(3, "dimensions", "int64", is_repeated=True),
        Field(4, "tuple_shapes", "Shape", is_repeated=True),
        Field(5, "layout", "Layout"),
        Field(6, "is_dynamic_dimension", "bool", is_repeated=True),
    ),
    "Layout": (Field(1, "minor_to_major", "int64", is_repeated=True), Field(8, "memory_space", "int64")),
    "OpMetadata": (
        Field(1, "op_type", "bytes"),
        Field(2, "op_name", "bytes"),
        Field(3, "source_file", "bytes"),
        Field(4, "source_line", "int32"),
        Field(15, "stack_frame_id", "int32"),
    ),
    "ReplicaGroup": (Field(1, "replica_ids", "int64", is_repeated=True),),
    "SourceTarget": (Field(1, "source", "int64"), Field(2, "target", "int64")),
    "CollectiveDeviceList": (
        Field(1, "replica_groups", "ReplicaGroup", is_repeated=True),
        Field(2, "iota_replica_group_list", "IotaReplicaGroupList"),
    ),
    "IotaReplicaGroupList": (
        Field(1, "num_replica_groups", "int64"),
        Field(2, "num_devices_per_group", "int64"),
        Field(3, "iota_reshape_dims", "int64", is_repeated=True),
        Field(4, "iota_transpose_perm", "int32", is_repeated=True),
    ),
    "MeshAxesReplicaGroupList": (Field(1, "mesh", "Mesh"), Field(2, "axes", "AxisRef", is_repeated=True)),
    "Mesh": (Field(1, "axes", "MeshAxis", is_repeated=True), Field(2, "device_ids", "int64", is_repeated=True)),
    "MeshAxis": (Field(1, "name", "bytes"), Field(2, "size", "int64")),
    "AxisRef": (Field(1, "mesh_axis_index", "int64"), Field(2, "sub_axis_info", "SubAxis")),
    "SubAxis": (Field(1, "pre_size", "int64"), Field(2, "size", "int64")),
    "FrontendAttributes": (Field(1, "map", "FrontendAttribute", is_repeated=True),),
    "FrontendAttribute": (Field(1, "key", "bytes"), Field(2, "value", "bytes")),
    "DeviceAssignment": (Field(3, "computation_devices", "ComputationDevice", is_repeated=True),),
    "ComputationDevice": (Field(1, "replica_device_ids", "int64", is_repeated=True),),
    "StackFrameIndex": (
        Field(1, "file_names", "bytes", is_repeated=True),
        Field(3, "file_locations", "FileLocation", is_repeated=True),
        Field(4, "stack_frames", "StackFrame", is_repeated=True),
    ),
    "FileLocation": (Field(1, "file_name_id", "int32"), Field(3, "line", "int32")),
    "StackFrame": (Field(1, "file_location_id", "int32"),),
}


CLASSES = message_classes("tracewarehouse.hlo", _MESSAGES)
"""The protobuf message classes by short name."""
