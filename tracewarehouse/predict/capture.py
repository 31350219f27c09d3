"""Writes a predicted timeline as a capture, as the profiler would have written it, so that ingest makes a run of it.

Every device of the slice runs the same program at the same times, so the planes differ in nothing but the device that
they name. The events of one are encoded once, and each plane repeats those bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracewarehouse.collect.capture import staged_capture, write_manifest
from tracewarehouse.ingest.capture.hardware import chip_named
from tracewarehouse.ingest.capture.manifest import Manifest
from tracewarehouse.ingest.capture.prediction import PredictedPhase, Prediction
from tracewarehouse.ingest.columns.profiler_names import (
    ASYNC_LINE,
    CPU_PLANE,
    METADATA_PLANE,
    MODULE_LINE,
    OP_LINE,
    PREDICTION,
    PREDICTION_PLANE,
    STEP_LINE,
)
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.ingest.protobuf import varint
from tracewarehouse.predict.costs import OpCost, op_costs
from tracewarehouse.predict.timeline import TimedOp, program_end

HOST = "predicted"
"""Name of the one host of a predicted capture."""
_LAYER = re.compile(r"(?<![a-z0-9_])((?:local_)?layers?[._/\[]?)(\d{1,5})(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True)
class PredictedStep:
    """One step: its program, and the ops of one execution of it.

    Attributes:
        facts: what main.predictions says of it.
        module: the compiled program.
        ops: the ops of each queue. One that names a `layer` is, or repeats, the op of another layer of the program.
    """

    facts: PredictedPhase
    module: HloModule
    ops: Sequence[TimedOp]

    @property
    def duration_ps(self) -> int:
        """The time until the core has run its last op."""
        return program_end(self.ops)


def write_capture(output: Path, manifest: Manifest, prediction: Prediction, steps: Sequence[PredictedStep]) -> Path:
    """Write a capture of one execution of each step, and return its folder, `output/<name of the run>`.

    The name gets `-predicted` at its end if it does not say so itself. The same arguments give the same bytes. The
    folder is there whole or not at all.
    """
    if [s.facts for s in steps] != prediction.phases:
        raise CaptureError(f"{manifest.name}: the predicted steps are not those that the prediction describes")
    if "predicted" not in manifest.name:
        manifest = manifest.model_copy(update={"name": f"{manifest.name}-predicted"})
    writer = _Writer(manifest.name, prediction, steps)
    with staged_capture(output, manifest.name) as staging:
        write_manifest(staging, manifest)
        folder = staging / "plugins" / "profile" / HOST
        folder.mkdir(parents=True)
        with (folder / f"{HOST}.xplane.pb").open("wb") as file:
            for piece in writer.pieces():
                file.write(piece)
    return output / manifest.name


class _Writer:
    def __init__(self, name: str, prediction: Prediction, steps: Sequence[PredictedStep]) -> None:
        self._name, self._prediction, self._steps = name, prediction, steps
        self._programs = [_whole_program(name, step) for step in steps]
        entry = chip_named(prediction.chip)
        self._per_chip = int(entry.get("devices_per_chip", 1)) if entry else 1
        counts = {s.module.device_counts for s in steps}
        if len(counts) != 1:
            raise CaptureError(f"{name}: the programs of its steps are for different numbers of devices")
        replicas, partitions = counts.pop()
        self._devices = sorted(steps[0].module.assignment) or list(range(replicas * partitions))

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the XSpace, in order."""
        plane = _Plane()
        lines = self._lines(plane)
        tails = [self._device_stats(plane, number, device) for number, device in enumerate(self._devices)]
        body = b"".join(lines) + plane.metadata_fields()
        for number, tail in enumerate(tails):
            head = _integer(1, 2 + number) + _content(2, f"/device:TPU:{number}")
            yield varint(1 << 3 | 2) + varint(len(head) + len(body) + len(tail)) + head
            yield body
            yield tail
        yield _content(1, self._programs_plane())
        if self._prediction.host_ps:
            yield _content(1, self._host_plane())
        told = _Plane()
        stats = _content(6, told.stat(PREDICTION, self._prediction.text))
        yield _content(1, _content(2, PREDICTION_PLANE) + told.metadata_fields() + stats)
        yield _content(4, HOST)

    def _lines(self, plane: _Plane) -> list[bytes]:
        """The lines of a device, whose events it describes in the plane."""
        host_ps = self._prediction.host_ps
        lines: dict[str, list[bytes]] = {STEP_LINE: [], MODULE_LINE: [], OP_LINE: [], ASYNC_LINE: []}
        begin = 0
        for number, (step, program) in enumerate(zip(self._steps, self._programs, strict=True)):
            until = step.duration_ps + host_ps
            lines[STEP_LINE].append(plane.event(plane.described(str(number)), begin, until))
            module = plane.described(f"{step.module.name}({program.program_id})")
            run_id = plane.number("run_id", number)
            lines[MODULE_LINE].append(plane.event(module, begin, step.duration_ps, run_id))
            ids = {key: plane.described(name, program.stats(plane, key, name)) for key, name in program.names.items()}
            for line, op in _events(step.ops):
                metadata_id, stats = ids[op.instruction, op.layer], plane.prediction(op)
                lines[line].append(plane.event(metadata_id, begin + op.start_ps, op.duration_ps, stats))
            begin += until
        return [
            _content(3, _integer(1, i) + _content(2, name) + b"".join(events))
            for i, (name, events) in enumerate(lines.items(), 1)
            if events
        ]

    def _device_stats(self, plane: _Plane, number: int, device: int) -> bytes:
        chip, core = divmod(device, self._per_chip)
        # CoreDetails of XProf: the number of the core on its chip, of the chip, and of the device in the slice
        details = _integer(2, number) + _integer(3, core) + _integer(4, chip) + _integer(5, chip) + _integer(6, device)
        stats = (plane.stat("device_type_string", self._prediction.chip), plane.stat("core_details", details))
        return b"".join(_content(6, s) for s in stats)

    def _programs_plane(self) -> bytes:
        plane = _Plane()
        for step, program in zip(self._steps, self._programs, strict=True):
            name = f"{step.module.name}({program.program_id})"
            plane.described(name, plane.stat_field("Hlo Proto", program.raw), metadata_id=program.program_id)
        return _content(2, METADATA_PLANE) + plane.metadata_fields()

    def _host_plane(self) -> bytes:
        """The plane of the host, whose marks of the steps include its own time."""
        plane, events, begin = _Plane(), [], 0
        for number, step in enumerate(self._steps):
            until = step.duration_ps + self._prediction.host_ps
            events.append(
                plane.event(plane.described(step.facts.phase), begin, until, plane.number("step_num", number))
            )
            begin += until
        line = _content(3, _integer(1, 1) + _content(2, HOST) + b"".join(events))
        return _content(2, CPU_PLANE) + line + plane.metadata_fields()


def _events(ops: Sequence[TimedOp]) -> Iterator[tuple[str, TimedOp]]:
    """Yield each op with its line: in order of start on each line, what holds others before these."""
    for line, is_core in ((OP_LINE, True), (ASYNC_LINE, False)):
        mine = [op for op in ops if (op.queue == "core") == is_core]
        for op in sorted(mine, key=lambda op: (op.start_ps, -op.duration_ps)):
            yield line, op


@dataclass(frozen=True)
class _Program:
    """The program of a step with the layers that were not compiled, and the name of each op's instruction in it."""

    raw: bytes
    program_id: int
    names: Mapping[tuple[str, int | None], str]
    costs: Mapping[str, OpCost]

    def stats(self, plane: _Plane, key: tuple[str, int | None], name: str) -> bytes:
        """The stats of an instruction, as the profiler states them."""
        cost = self.costs.get(key[0], OpCost())
        fields = plane.stat_field("hlo_op", name) + plane.number("program_id", self.program_id, field=5)
        if cost.category:
            fields += plane.stat_field("hlo_category", cost.category)
        for stat, value in (("flops", cost.flops), ("model_flops", cost.flops), ("bytes_accessed", cost.bytes)):
            fields += plane.number(stat, value, field=5) if value is not None else b""
        if cost.hbm_bytes is not None:
            fields += plane.stat_field("memory_access_breakdown", _breakdown(cost))
        return fields


def _breakdown(cost: OpCost) -> bytes:
    """A MemoryAccessBreakdown of XProf: bytes in HBM, which is memory space 1, and those on the chip."""
    hbm = cost.hbm_bytes or 0
    spaces = ((1, hbm), (2, (cost.bytes or 0) - hbm))
    return b"".join(_content(1, _integer(2, space) + _integer(3, size)) for space, size in spaces)


def _whole_program(name: str, step: PredictedStep) -> _Program:
    """Return the program with a copy of each instruction for each layer that it stands for."""
    keys = dict.fromkeys((op.instruction, op.layer) for op in step.ops)
    for instruction, _ in keys:
        if step.module.instruction(instruction) is None:
            raise CaptureError(f"{name}: {step.module.name} has no instruction {instruction}, which is timed")
    names = {key: key[0] if key[1] is None else f"{key[0]}.layer{key[1]}" for key in keys}
    copied = {key: new for key, new in names.items() if key[1] is not None}
    raw = _with_copies(step.module, copied) if copied else step.module.raw
    digest = hashlib.sha256(raw).digest()
    costs = op_costs(step.module, {key[0] for key in keys}, step.facts.context_tokens)
    return _Program(raw, int.from_bytes(digest[:7]), names, costs)


def _with_copies(module: HloModule, copied: Mapping[tuple[str, int | None], str]) -> bytes:
    """Return the program with further instructions: copies of its own for other layers.

    A copy reads what the copies of its operands for the same layer make, where there are any, and its name path is that
    of its layer.
    """
    proto = CLASSES["HloProto"].FromString(module.raw)
    of_name: dict[str, tuple[Any, Any]] = {}
    for computation in proto.hlo_module.computations:
        for each in computation.instructions:
            of_name[each.name.decode()] = computation, each
    next_id = 1 + max(each.id for _, each in of_name.values())
    new_id = {key: next_id + i for i, key in enumerate(copied)}
    name_of_id = {each.id: name for name, (_, each) in of_name.items()}
    for (name, layer), new_name in copied.items():
        computation, original = of_name[name]
        copy = computation.instructions.add()
        copy.CopyFrom(original)
        copy.name, copy.id = new_name.encode(), new_id[name, layer]
        operands = [new_id.get((name_of_id.get(o, ""), layer), o) for o in original.operand_ids]
        del copy.operand_ids[:]
        copy.operand_ids.extend(operands)
        stated = module.instruction(name)
        if stated is not None and stated.op_name:
            copy.metadata.op_name = _LAYER.sub(rf"\g<1>{layer}", stated.op_name).encode()
    raw: bytes = proto.SerializeToString(deterministic=True)
    return raw


class _Plane:
    """The events, event metadata and stats of a plane, as bytes."""

    def __init__(self) -> None:
        self._metadata: list[bytes] = []
        self._ids: dict[str, int] = {}
        self._stats: dict[str, int] = {}

    def described(self, name: str, stats: bytes = b"", metadata_id: int | None = None) -> int:
        """The id of the metadata of events of this name, which is added if it is not there."""
        key = f"{name}\0{stats.hex()}"
        if key not in self._ids:
            number = len(self._ids) + 1 if metadata_id is None else metadata_id
            body = _integer(1, number) + _content(2, name) + stats
            self._metadata.append(_content(4, _integer(1, number) + _content(2, body)))
            self._ids[key] = number
        return self._ids[key]

    def event(self, metadata_id: int, start_ps: int, duration_ps: int, stats: bytes = b"") -> bytes:
        """An event of a line."""
        return _content(4, _integer(1, metadata_id) + _integer(2, start_ps) + _integer(3, duration_ps) + stats)

    def stat(self, name: str, value: str | bytes) -> bytes:
        """A stat of text or bytes."""
        return _integer(1, self._stat_id(name)) + _content(5 if isinstance(value, str) else 6, value)

    def stat_field(self, name: str, value: str | bytes) -> bytes:
        """A stat of event metadata."""
        return _content(5, self.stat(name, value))

    def number(self, name: str, value: int, field: int = 4) -> bytes:
        """A stat that is a number, of an event, or of event metadata if the field is 5."""
        return _content(field, _integer(1, self._stat_id(name)) + _integer(3, value))

    def prediction(self, op: TimedOp) -> bytes:
        """The stats of a predicted op."""
        basis = _integer(1, self._stat_id("predicted_basis")) + _integer(7, self._stat_id(op.basis))
        return (
            _content(4, basis)
            + self.number("predicted_low_ps", op.low_ps)
            + self.number("predicted_high_ps", op.high_ps)
            + self.number("predicted_is_extrapolated", int(op.is_repeated))
            + (b"" if op.link_ps is None else self.number("predicted_link_ps", op.link_ps))
        )

    def metadata_fields(self) -> bytes:
        """The fields that describe events and stats, once all of them are known."""
        names = (
            _content(5, _integer(1, number) + _content(2, _integer(1, number) + _content(2, name)))
            for name, number in self._stats.items()
        )
        return b"".join(self._metadata) + b"".join(names)

    def _stat_id(self, name: str) -> int:
        return self._stats.setdefault(name, len(self._stats) + 1)


def _integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def _content(number: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw
