"""Runs an experiment on a TPU slice: all of its hosts record one run after the other, and captures are copied back.

This module chooses the next run. The hosts record it in a round: a capture counts if all of them finish it in the same
round. If some do not, all record the run again, in another round.
"""

from __future__ import annotations

import secrets
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tracewarehouse.collect.capture import Output, require_writable
from tracewarehouse.collect.checks.reference import kept_files
from tracewarehouse.collect.errors import TpuError
from tracewarehouse.collect.experiment import Experiment
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu import commands
from tracewarehouse.collect.tpu.captures import fetch, pending
from tracewarehouse.collect.tpu.commands import SharedRuns
from tracewarehouse.collect.tpu.gcloud import ADD_KEY, READY, KeyAgentError, Running, failed_on_host
from tracewarehouse.collect.tpu.installation import Installation, install, remove_token
from tracewarehouse.collect.tpu.plan import slice_runs, tpu_runs
from tracewarehouse.collect.tpu.slices import InterruptionError, Slices
from tracewarehouse.collect.tpu.state import Round, Slice
from tracewarehouse.collect.tpu.weights import too_large

PATIENCE = 2
"""Looks during which a host may still record after another one has failed; then all are stopped."""


@dataclass(frozen=True)
class SweepResult:
    """The outcome of the runs on one slice."""

    recorded: list[Path]
    """Captures in the output, including those of earlier calls."""
    missing: dict[str, str]
    """Names of runs without a capture, and the reasons."""
    other_sizes: list[str]
    """Names of runs whose mesh needs a slice of another size."""


def run_sweep(
    slices: Slices,
    name: str,
    experiment: Experiment,
    output: Path,
    *,
    installation: Installation | None = None,
    poll_s: float = 60.0,
    attempts: int = 10,
    by_model: bool = False,
) -> SweepResult:
    """Record the runs that fit the slice and copy each capture back when it is finished.

    A capture that is already in `output` is not recorded again. If the slice is preempted or the connection lost, the
    slice is created again if need be, and the missing runs are recorded. Every capture renews the number of attempts.
    With `by_model` a capture is in `output/<model>/<parallelism>`.
    """
    installation = installation or Installation()
    entry = slices.state.get(name)
    specs = slice_runs(experiment, entry, slices.quota.generation(entry.generation).kind)
    require_writable(output)
    has_room = entry.place.data_disk or entry.place.bucket
    refused = {} if has_room else {s.name: why for s in specs if (why := too_large(s))}
    place = Output(output, by_model)
    sweep = _Sweep(slices, entry, experiment, specs, place, poll_s, refused)
    references = kept_files(spec.model for spec in specs if spec.reference_mode == "kept")
    with_torch = any(spec.backend != "jax" for spec in tpu_runs(experiment))
    try:
        while sweep.left():
            before = len(sweep.left())
            try:
                for attempt in slices.attempts(attempts):
                    with attempt:
                        slices.ensure(entry)
                        install(slices, entry, installation, references, with_torch=with_torch)
                        sweep.record()
            except InterruptionError:
                if len(sweep.left()) == before:
                    raise
    finally:
        if installation.token:
            remove_token(slices, entry)
    left = [s.name for s in pending(specs, place)]
    recorded = [place.capture(s) for s in specs if s.name not in left]
    other_sizes = [s.name for s in tpu_runs(experiment) if s.mesh.size != entry.devices]
    return SweepResult(recorded, {n: sweep.failed.get(n, "it was not tried") for n in left}, other_sizes)


@dataclass
class _Sweep:
    """One experiment on one slice."""

    slices: Slices
    entry: Slice
    experiment: Experiment
    specs: list[RunSpec]
    output: Output
    poll_s: float
    failed: dict[str, str]
    """Names of runs that no round has recorded or will record, and the reasons."""

    def left(self) -> list[RunSpec]:
        """Return the runs to record."""
        return [s for s in pending(self.specs, self.output) if s.name not in self.failed]

    def record(self) -> None:
        """Record the missing runs, each on all hosts at the same time, and copy the captures back."""
        self._share(self.left())
        self._rejoin()
        for spec in self.left():
            self._record(spec)

    def _share(self, specs: list[RunSpec]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / commands.RUNS
            shared = SharedRuns.from_specs(specs, self.experiment.timeout_s)
            file.write_text(shared.model_dump_json(indent=1), encoding="utf-8")
            done = self.slices.cloud(self.entry).upload(self.entry, file, commands.RUNS)
        self.slices.require(self.entry, done, "the list of runs could not be copied")

    def _rejoin(self) -> None:
        """Copy the captures that are whole; go on with the interrupted round, or end it if nobody wants its run."""
        self._fetch()
        if (begun := self.entry.round) is None:
            return
        spec = next((s for s in self.left() if s.name == begun.run), None)
        if spec is None:
            done = self.slices.cloud(self.entry).ssh(self.entry, commands.stop_command(begun))
            self.slices.require(self.entry, done, "the hosts could not be stopped")
            self._set_round(None)
        else:
            self._record(spec)

    def _record(self, spec: RunSpec) -> None:
        for left in reversed(range(self.experiment.retries + 1)):
            if self.entry.round is None:
                self._set_round(Round(token=secrets.token_hex(4), run=spec.name))
            why = self._round()
            if not pending([spec], self.output):
                self._set_round(None)
                return
            self.slices.show(f"# {spec.name} was not recorded: {why}" + ("; all hosts record it again" if left else ""))
            self._set_round(None)
        self.failed[spec.name] = why

    def _round(self) -> str:
        """Let all hosts record a run together and copy the capture; return why there is none."""
        round_ = self.entry.round
        assert round_ is not None  # noqa: S101
        command = commands.record_command(round_, self.entry.place, self.entry.hosts)
        log = self.output.root / f"{self.entry.name}.log"
        with log.open("a+", encoding="utf-8", errors="replace") as file:
            start = file.seek(0, 2)

            def said() -> str:
                with log.open("rb") as written:
                    written.seek(start)
                    return written.read().decode(errors="replace")

            process = self.slices.cloud(self.entry).start_ssh(self.entry, command, file)
            try:
                self._follow(process, round_, said)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        text = said()
        codes = commands.ended(text, round_)
        if "not present in the SSH agent" in text:
            raise KeyAgentError(f"the key for the hosts is not in the SSH agent; run {ADD_KEY}")
        self._fetch()
        if not pending([s for s in self.specs if s.name == round_.run], self.output):
            return ""
        if len(codes) < self.entry.hosts and failed_on_host(process.returncode, text):
            raise TpuError(f"{self.entry.name}: the hosts cannot record: {' '.join(text.split())[-300:]}")
        if len(codes) < self.entry.hosts:
            raise self.slices.interruption(self.entry, f"{len(codes)} of {self.entry.hosts} hosts ended; see {log}")
        return _reason(text, codes)

    def _follow(self, process: Running, round_: Round, said: Callable[[], str]) -> None:
        """Wait for the end of a round, even if the connection hangs or breaks."""
        patience = PATIENCE
        while True:
            try:
                process.wait(self.poll_s)
            except subprocess.TimeoutExpired:
                pass
            else:
                return
            codes = commands.ended(said(), round_)
            if any(code != "0" for code in codes.values()):
                patience -= 1
            try:
                if patience == 0:
                    self.slices.show("# a host failed and others go on: all are stopped")
                    self.slices.cloud(self.entry).ssh(self.entry, commands.stop_command(round_))
                # A connection may hang although the hosts are done.
                if self._fetch():
                    return
            except InterruptionError as error:
                self.slices.show(f"# {error}; trying again later")
                # If Google does not answer either, the connection is lost for a while, not the slice.
                if self.slices.found(self.entry) not in (READY, None):
                    return

    def _fetch(self) -> list[Path]:
        return fetch(self.slices.cloud(self.entry), self.entry, self.specs, self.output, self.slices.show)

    def _set_round(self, round_: Round | None) -> None:
        self.entry.round = round_
        self.slices.state.put(self.entry)


def _reason(text: str, codes: dict[str, str]) -> str:
    """Return the message of a host, or how the hosts ended."""
    lines = [line.strip() for line in text.splitlines()]
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if said:
        return said[-1]
    unlike = [f"{host} ended with {code}" for host, code in sorted(codes.items()) if code != "0"]
    return ", ".join(unlike) or "the hosts ended well, but not all have the capture"
