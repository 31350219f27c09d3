"""Declares the messages of the profiler's gRPC service, `tensorflow.ProfilerService`, that a capture needs.

Field numbers are those of profiler_service.proto and profiler_options.proto of OpenXLA (tsl/profiler/protobuf). XSpace
is declared as bytes, which looks the same on the wire: it goes to a file as it came.
"""

from __future__ import annotations

from tracewarehouse.ingest.protobuf import Field, message_classes

PROFILE = "/tensorflow.ProfilerService/Profile"

_MESSAGES = message_classes(
    "tracewarehouse.profiler_service",
    {
        "ProfileOptions": [
            Field(2, "host_tracer_level", "int32"),
            Field(3, "device_tracer_level", "int32"),
            Field(4, "python_tracer_level", "int32"),
            Field(5, "version", "int32"),
            Field(7, "enable_hlo_proto", "bool"),
            Field(9, "duration_ms", "uint64"),
        ],
        "ProfileRequest": [
            Field(1, "duration_ms", "uint64"),
            Field(4, "opts", "ProfileOptions"),
            Field(5, "repository_root", "bytes"),
            Field(6, "session_id", "bytes"),
            Field(7, "host_name", "bytes"),
            Field(9, "emit_xspace", "bool"),
        ],
        "ProfileToolData": [Field(1, "name", "bytes"), Field(2, "data", "bytes")],
        "ProfileResponse": [
            Field(6, "tool_data", "ProfileToolData", is_repeated=True),
            Field(7, "empty_trace", "bool"),
            Field(8, "xspace", "bytes"),
        ],
    },
)
ProfileOptions = _MESSAGES["ProfileOptions"]
ProfileRequest = _MESSAGES["ProfileRequest"]
ProfileResponse = _MESSAGES["ProfileResponse"]
