"""Small runs made up at random: two axes, synchronous and asynchronous ops, ops between steps, ops over each other."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from plain_metrics import length

Row = dict[str, Any]
_QUANTUM = 250_000
_SIZES = (512, 4096, 24_000, 100_000)
_OPS: dict[int, Row] = {
    0: {
        "name": "fusion.0",
        "opcode": "fusion",
        "category": "loop fusion",
        "layer": 0,
        "layer_source": "marked",
        "part": "attn",
    },
    1: {
        "name": "dot.1",
        "opcode": "dot",
        "category": "convolution",
        "layer": 1,
        "layer_source": "inferred",
        "part": "moe",
    },
    2: {"name": "copy.2", "opcode": "copy", "category": "data formatting"},
    3: {"name": "copy-start.3", "opcode": "copy-start", "async_role": "start"},
    4: {"name": "copy-done.3", "opcode": "copy-done", "async_role": "done", "async_start": "copy-start.3"},
    5: {"name": "slice-start.5", "opcode": "async-start", "async_role": "start"},
    6: {"name": "slice-done.5", "opcode": "async-done", "async_role": "done", "async_start": "slice-start.5"},
    7: {"name": "while.7", "opcode": "while"},
    8: {
        "name": "kernel.8",
        "opcode": "custom-call",
        "category": "custom-call",
        "loop_layer": 3,
        "layers_per_iteration": -2,
        "layer_source": "loop",
        "part": "mlp",
    },
}
_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


class RandomRun:
    """One run: rows by table, as ingest would write them.

    Args:
        run_id: the run.
        seed: another seed is another run.
    """

    def __init__(self, run_id: str, seed: int) -> None:
        self.run_id = run_id
        self.random = random.Random(seed)
        self.tables: dict[str, list[Row]] = defaultdict(list)
        self.is_overlapping = self.random.random() < 0.3
        self.pp, self.tp = self.random.choice([1, 2]), self.random.choice([1, 2, 2, 3])
        self.devices = range(self.pp * self.tp)
        self.cursor = dict.fromkeys(self.devices, self.random.randrange(4) * _QUANTUM)
        self.events = 0
        self.instances = 0
        self._facts()
        self._instructions()
        programs = {number: self._program() for number in range(self.random.randrange(1, 4))}
        for step in range(self.random.randrange(1, 6)):
            self._step(step, self.random.choice(list(programs.values())))
            if self.random.random() < 0.5:
                self._execute(None, None, self.random.choices(range(3), k=2), 100 + step)
        self._own()
        self._expose()

    def _add(self, table: str, **row: Any) -> None:
        self.tables[table].append({"run_id": self.run_id} | row)

    def _own(self) -> None:
        """Ops and collectives between two steps belong to the step before; those after the last are outside."""
        for row in [*self.tables["ops"], *self.tables["collectives"]]:
            if row["step"] is not None:
                continue
            steps = [p for p in self.tables["phases"] if p["device_id"] == row["device_id"] and p["kind"] == "step"]
            before = [p for p in steps if p["start_ps"] <= row["start_ps"]]
            if before and (len(before) < len(steps) or row["start_ps"] < before[-1]["end_ps"]):
                row["step"] = before[-1]["index"]
                row["phase"] = before[-1]["name"] if before[-1]["name"] != "step" else None
            else:
                row["phase"] = "outside"

    def _maybe(self, value: Any) -> Any:
        return None if self.random.random() < 0.15 else value

    def _facts(self) -> None:
        maybe = self._maybe
        self._add(
            "runs",
            device_count=len(self.devices),
            missing_devices=self.random.choice([None, 0, 2]),
            pp=maybe(self.pp),
            tp=self.tp,
            microbatches=maybe(3),
            num_layers=2,
            hidden_size=24,
            num_heads=maybe(4),
            head_dim=8,
            num_params_active=maybe(7_000),
            vocab_size=maybe(50),
            has_tied_embeddings=self.random.choice([None, False, True]),
            dtype=self.random.choice([None, "bfloat16", "int8", "float8_e4m3fn"]),
            num_params_embedding=maybe(self.random.choice([1_200, 2_400])),
            batch_size=maybe(3),
            input_length=maybe(5),
        )
        peaks = {"peak_flops_per_s": maybe(1e12), "peak_hbm_gbps": maybe(100.0), "peak_ici_gbps": maybe(20.0)}
        peaks |= {"peak_int8_flops_per_s": maybe(2e12), "peak_fp8_flops_per_s": maybe(1.5e12)}
        for device in self.devices:
            self._add("devices", device_id=device, backend="tpu", link="ici", pp_index=device // self.tp, **peaks)

    def _instructions(self) -> None:
        pick, maybe = self.random.choice, self._maybe
        self.instructions = {n: dict(i) for n, i in _OPS.items()}
        for i in self.instructions.values():
            if i.get("async_role") == "done":
                continue
            i["bytes_accessed"] = maybe(pick((0, 1_000, 200_000)))
            if "async_role" not in i and i["opcode"] != "copy":
                i["flops"] = i["model_flops"] = maybe(pick((0, 50_000, 2_000_000)))
                i["operand_dtype"] = pick((None, None, "bf16", "s8", "f8e4m3fn"))
            if i["bytes_accessed"]:
                i["hbm_bytes_accessed"], i["on_chip_bytes_accessed"] = pick(((None, None), (600, 0), (0, 900)))
            if i["opcode"] == "custom-call":
                i["given_flops"], i["given_bytes_accessed"] = pick((None, None, 70_000)), pick((None, None, 30_000))
        for axis, number in (("tp", 10), ("pp", 20)):
            of_axis = "collective-permute" if axis == "pp" else pick(_KINDS)
            for at, size in enumerate(self.random.sample(_SIZES, 2)):
                kind = pick((of_axis, of_axis, pick(_KINDS)))
                first = number + 3 * at
                fact = {"collective": kind, "axis": axis, "message_bytes": size, "model_flops": 10}
                self.instructions[first] = {"name": f"{kind}.{first}", "opcode": kind, "bytes_accessed": size} | fact
                for role, place in (("start", first + 1), ("done", first + 2)):
                    self.instructions[place] = (
                        {"name": f"{kind}-{role}.{first + 1}", "opcode": f"{kind}-{role}", "async_role": role}
                        | ({"async_start": f"{kind}-start.{first + 1}"} if role == "done" else {})
                        | fact
                    )
        for number, i in self.instructions.items():
            if "collective" in i:
                self._traffic(number, i)
            row = {"category": i["opcode"]} | {k: v for k, v in i.items() if k != "axis"}
            self._add("instructions", instruction_id=number, program_id=1, **row)

    def _traffic(self, number: int, i: Row) -> None:
        for device in self.devices:
            rank, group = device // self.tp, device % self.tp
            ranks = [g * self.tp + group for g in range(self.pp)]
            if i["axis"] == "tp":
                rank, ranks = device % self.tp, [d for d in self.devices if d // self.tp == device // self.tp]
            sent = _sent(i["collective"], i["message_bytes"], len(ranks), rank)
            others = [d for d in ranks if d != device]
            targets = others if i["collective"] == "all-to-all" else [ranks[(rank + 1) % len(ranks)]]
            for target in targets:
                if sent:
                    share = {"source_device_id": device, "target_device_id": target, "bytes": sent // len(targets)}
                    self._add("traffic", instruction_id=number, algorithm="made up", **share)

    def _program(self) -> list[int]:
        """Instructions in order; of an asynchronous op the done somewhere behind its start."""
        found: list[int] = []
        for _ in range(self.random.randrange(2, 8)):
            chosen = self.random.choice([0, 0, 1, 2, 3, 5, 8, *(n for n in (10, 13, 20, 23))])
            if self.instructions[chosen].get("collective") and self.random.random() < 0.4:
                chosen += 1
            at = self.random.randrange(len(found) + 1)
            if chosen + 1 in found and chosen in (3, 5, 11, 14, 21, 24):
                continue
            found.insert(at, chosen)
            if self.instructions[chosen].get("async_role") == "start":
                found.insert(self.random.randrange(at + 1, len(found) + 1), chosen + 1)
        return found

    def _step(self, step: int, program: list[int]) -> None:
        phase = (
            self.random.choice(["prefill", "step"])
            if step == 0
            else self.random.choice(["decode"] * 10 + ["prefill"] * 2 + ["mixed"])
        )
        name = phase if phase != "step" else None
        self._execute(step, name, program, step)
        spans = {}
        for device in self.devices:
            ops = [o for o in self.tables["ops"] if (o["step"], o["device_id"]) == (step, device)]
            start = min(o["start_ps"] for o in ops) - self.random.randrange(2) * _QUANTUM
            end = max(o["start_ps"] + max(o["duration_ps"], _QUANTUM) for o in ops)
            end += self.random.randrange(2) * _QUANTUM
            self.cursor[device] = max(self.cursor[device], end)
            spans[device] = (start, end)
            self._add("phases", device_id=device, kind="step", name=phase, index=step, start_ps=start, end_ps=end)
        start, end = min(s for s, _ in spans.values()), max(e for _, e in spans.values())
        self._add("phases", device_id=None, kind="step", name=phase, index=step, start_ps=start, end_ps=end)
        self.cursor = dict.fromkeys(self.devices, max(self.cursor.values()) + self.random.randrange(2, 8) * _QUANTUM)

    def _execute(self, step: int | None, phase: str | None, program: list[int], execution: int) -> None:
        """Every device executes the program at its own pace; the ranks of a collective share an instance."""
        instances: dict[Any, int] = {}
        partial: set[int] = set()
        for device in self.devices:
            started: dict[int, Row] = {}
            begun, until = None, 0
            for place, number in enumerate(program):
                start, end = self._op(device, step, phase, execution, number)
                begun, until = start if begun is None else begun, max(until, end)
                i = self.instructions[number]
                if "collective" not in i:
                    continue
                if i.get("async_role") == "done":
                    started[number - 1] |= {"done_event_id": self.events - 1, "end_ps": end}
                    continue
                is_pp = i["axis"] == "pp"
                group = device % self.tp if is_pp else device // self.tp
                if (place, group) not in instances:
                    instances[place, group] = self.instances
                    if self.random.random() < 0.1:
                        partial.add(self.instances)
                    self.instances += 1
                size = self.pp if is_pp else self.tp
                rank = device // self.tp if is_pp else device % self.tp
                is_partial = instances[place, group] in partial
                started[number] = {
                    "event_id": self.events - 1,
                    "device_id": device,
                    "instruction_id": number,
                    "instance": instances[place, group],
                    "kind": i["collective"],
                    "axis": i["axis"],
                    "group_index": group,
                    "group_size": size,
                    "is_partial": is_partial,
                    "message_bytes": i["message_bytes"],
                    "wire_bytes": None if is_partial else _sent(i["collective"], i["message_bytes"], size, rank),
                    "is_async": i.get("async_role") == "start",
                    "window_source": "start/done pair" if i.get("async_role") else "op",
                    "start_ps": start,
                    "end_ps": end,
                    "phase": phase,
                    "step": step,
                }
                self.tables["collectives"].append({"run_id": self.run_id} | started[number])
                started[number] = self.tables["collectives"][-1]
            if begun is not None:
                self._add(
                    "phases", device_id=device, kind="module", name="jit", index=execution, start_ps=begun, end_ps=until
                )

    def _op(self, device: int, step: int | None, phase: str | None, execution: int, number: int) -> tuple[int, int]:
        back = self.random.randrange(5) if self.is_overlapping else 0
        gap = self.random.choice([0, 0, 0, 1, 2, 3, 4, 5, 8])
        start = max(0, self.cursor[device] + (gap - back) * _QUANTUM)
        if self.is_overlapping:
            earlier = [o for o in self.tables["ops"] if (o["device_id"], o["execution"]) == (device, execution)]
            start = max(start, max((o["start_ps"] for o in earlier), default=self.cursor[device]))
        duration = self.random.randrange(9) * _QUANTUM
        self.cursor[device] = max(self.cursor[device], start + duration)
        costs: Row = {}
        if "async_role" not in self.instructions[number] and self.random.random() < 0.3:
            costs = {
                n: self.random.choice((None, 0, 3_000, 400_000)) for n in ("flops", "model_flops", "bytes_accessed")
            }
        self._add(
            "ops",
            event_id=self.events,
            device_id=device,
            instruction_id=number,
            start_ps=start,
            duration_ps=duration,
            self_ps=duration,
            is_leaf=number != 7,
            execution=execution,
            iteration=(0, 1, None)[self.events % 3] if number == 8 else None,
            phase=phase,
            step=step,
            link_ps=duration * 3 // 4 if self.events % 11 == 0 else None,
            **costs,
        )
        self.events += 1
        return start, start + duration

    def _expose(self) -> None:
        """Times of each window in which the op line runs communication, and only other ops."""
        running: dict[int, list[tuple[int, int]]] = defaultdict(list)
        busy: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for o in self.tables["ops"]:
            if o["is_leaf"]:
                busy[o["device_id"]].append((o["start_ps"], o["start_ps"] + o["duration_ps"]))
            if "collective" in self.instructions[o["instruction_id"]]:
                running[o["device_id"]].append((o["start_ps"], o["start_ps"] + o["duration_ps"]))
        for c in self.tables["collectives"]:
            c["exposed_ps"] = _within(c, running[c["device_id"]])
            c["hidden_ps"] = _within(c, busy[c["device_id"]]) - c["exposed_ps"]


def _within(window: dict[str, Any], ops: list[tuple[int, int]]) -> int:
    inside = ((max(start, window["start_ps"]), min(end, window["end_ps"])) for start, end in ops)
    return length((start, end) for start, end in inside if start < end)


def _sent(kind: str, size: int, n: int, rank: int) -> int:
    if kind == "collective-permute":
        return size if rank < n - 1 else 0
    return (2 if kind == "all-reduce" else 1) * (n - 1) * size // n
