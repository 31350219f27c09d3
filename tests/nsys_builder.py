"""Builds small exports of Nsight Systems: the tables of schema 3.25, or those that a test asks for."""

from __future__ import annotations

import gzip
import sqlite3
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VM = 1 << 48
TABLES = {
    "StringIds": "id, value",
    "META_DATA_EXPORT": "name, value",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs, utcTime",
    "TARGET_INFO_SYSTEM_ENV": "globalVid, name, value",
    "ANALYSIS_DETAILS": "globalVid, duration, startTime, stopTime",
    "ThreadNames": "nameId, priority, globalTid",
    "TARGET_INFO_GPU": "vmId, id, name, totalMemory, memoryBandwidth, clockRate, smCount, uuid, busLocation, "
    "computeMajor, computeMinor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId, cudaId, pid, uuid, numMultiprocessors",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, "
    "shortName, gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread, staticSharedMemory, "
    "dynamicSharedMemory, graphNodeId, graphId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, deviceId, contextId, streamId, correlationId, globalPid, bytes, "
    "copyKind, srcKind, dstKind, graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start, end, deviceId, contextId, streamId, correlationId, globalPid, value, bytes",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start, end, deviceId, contextId, streamId, correlationId, globalPid, graphId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, returnValue",
    "OSRT_API": "start, end, globalTid, nameId",
    "NVTX_EVENTS": "start, end, eventType, text, globalTid, textId, domainId, binaryData",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId, schemaId, idx, type, name, offset",
    "TARGET_INFO_GPU_METRICS": "typeId, metricId, metricName",
    "GPU_METRICS": "timestamp, typeId, metricId, value",
}
COMMUNICATOR, MESSAGE = 101, 102


class Export:
    """An export; its tables are made when they get their first row, as Nsight Systems does."""

    def __init__(self, version: str | None = "3.25.0") -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self._strings: dict[str, int] = {}
        self._correlation = 0
        if version:
            table = "META_DATA_EXPORT" if version.startswith("3") else "EXPORT_META_DATA"
            self.add(table, name="EXPORT_SCHEMA_VERSION", value=version)

    def add(self, table: str, **values: Any) -> Export:
        """Add a row."""
        self.rows.setdefault(table, []).append(values)
        return self

    def text(self, value: str) -> int:
        """The id of a text."""
        if value not in self._strings:
            self._strings[value] = len(self._strings) + 1
            self.add("StringIds", id=self._strings[value], value=value)
        return self._strings[value]

    def gpu(self, number: int, name: str = "NVIDIA H100 80GB HBM3", **facts: Any) -> Export:
        """Add a GPU."""
        known = {"smCount": 132, "totalMemory": 85_029_158_912, "memoryBandwidth": 3_352_320_000_000}
        return self.add("TARGET_INFO_GPU", vmId=VM, id=number, name=name, **known | {"uuid": f"{number}"} | facts)

    def call(
        self, start: int, end: int, name: str = "cudaLaunchKernel_v7000", pid: int = 7, tid: int = 7, **more: Any
    ) -> int:
        """Add a call of the runtime; its correlation is returned."""
        self._correlation += 1
        correlation = more.pop("correlationId", self._correlation)
        row = {
            "start": start,
            "end": end,
            "eventClass": 0,
            "globalTid": VM | pid << 24 | tid,
            "nameId": self.text(name),
        }
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", **row | {"correlationId": correlation, "returnValue": 0} | more)
        return int(correlation)

    def kernel(
        self, start: int, end: int, name: str = "gemm", launch: int | None = None, pid: int = 7, **more: Any
    ) -> Export:
        """Add a kernel, which a call of this correlation launched."""
        where = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": VM | pid << 24, "correlationId": launch}
        shape = dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), 1) | {"registersPerThread": 32}
        names = {"shortName": self.text(name), "demangledName": self.text(f"void {name}(int)")}
        row = {"start": start, "end": end, "staticSharedMemory": 0, "dynamicSharedMemory": 0}
        return self.add("CUPTI_ACTIVITY_KIND_KERNEL", **row | where | shape | names | more)

    def other(self, kind: str, start: int, end: int, launch: int | None = None, pid: int = 7, **more: Any) -> Export:
        """Add a MEMCPY, MEMSET or GRAPH_TRACE."""
        where = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": VM | pid << 24, "correlationId": launch}
        return self.add(f"CUPTI_ACTIVITY_KIND_{kind}", **{"start": start, "end": end} | where | more)

    def range(self, start: int, end: int | None, text: str, pid: int = 7, tid: int = 7, **more: Any) -> Export:
        """Add a push/pop range."""
        row = {
            "start": start,
            "end": end,
            "eventType": 59,
            "text": text,
            "globalTid": VM | pid << 24 | tid,
            "domainId": 0,
        }
        return self.add("NVTX_EVENTS", **row | more)

    def nccl(self) -> Export:
        """Add the schemas of NCCL's payloads."""
        entries: Mapping[int, tuple[tuple[int, str, int], ...]] = {
            COMMUNICATOR: (
                (18, "NCCL communicator ID", 0),
                (5, "No. of ranks", 8),
                (5, "Rank", 12),
                (5, "CUDA device", 16),
            ),
            MESSAGE: ((18, "NCCL communicator ID", 0), (22, "Message size [bytes]", 8)),
        }
        for schema, fields in entries.items():
            for i, (kind, name, offset) in enumerate(fields):
                where = {"domainId": 1, "schemaId": schema, "idx": i}
                self.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", **where, type=kind, name=name, offset=offset)
        return self

    def write(self, path: Path, *, order: int = 1) -> Path:
        """Write the database, gzipped if the name ends so; -1 as order writes the rows backwards."""
        plain = path.with_suffix(".plain")
        plain.unlink(missing_ok=True)
        connection = sqlite3.connect(plain)
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
        for table, rows in self.rows.items():
            columns = list(dict.fromkeys(c for row in rows for c in row))
            if table in TABLES:
                columns = [c.strip() for c in TABLES[table].split(",")] + [c for c in columns if c not in TABLES[table]]
            names = ", ".join(f'"{c}"' for c in columns)
            connection.execute(f"CREATE TABLE {table} ({names})")
            values = [[row.get(c) for c in columns] for row in rows][::order]
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", values)
        connection.commit()
        connection.close()
        content = plain.read_bytes()
        plain.unlink()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return path


def payload(schema: int, *fields: int) -> bytes:
    """A payload of NCCL: of a communicator its id, ranks, rank and device; of a message the communicator and bytes."""
    content = struct.pack("<QIII" if schema == COMMUNICATOR else "<QQ", *fields)
    return struct.pack("<QQQQ", 1, schema, len(content), 32 + len(content)) + content
