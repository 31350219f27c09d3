from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tracewarehouse.collect.capture import is_recorded
from tracewarehouse.collect.errors import CollectError, ExperimentError, QuotaError, TpuError
from tracewarehouse.collect.experiment import Experiment, load_experiment, plan, ready_made
from tracewarehouse.collect.run_spec import run_spec
from tracewarehouse.collect.tpu.captures import merge_hosts
from tracewarehouse.collect.tpu.gcloud import Gcloud
from tracewarehouse.collect.tpu.plan import plan_slices
from tracewarehouse.collect.tpu.quota import load_quota
from tracewarehouse.collect.tpu.state import Slice, State
from tracewarehouse.collect.tpu.sweep import collect_command
from tracewarehouse.ingest.capture.manifest import load_manifest

REPO = Path(__file__).parents[2]

GCLOUD = """
import json, os, pathlib, shutil, subprocess, sys, time
cloud = pathlib.Path(os.environ["FAKE_CLOUD"])
arguments = sys.argv[1:]
with (cloud / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps(arguments) + chr(10))
assert arguments[:3] == ["compute", "tpus", "tpu-vm"], arguments
verb, rest = arguments[3], arguments[4:]
options = dict((a[2:].partition("=")[::2]) for a in rest if a.startswith("--"))
names = [a for a in rest if not a.startswith("--")]

def fail(text, code=1):
    print("ERROR: (gcloud.compute.tpus.tpu-vm)", text, file=sys.stderr)
    sys.exit(code)

failures = cloud / f"fail_{verb}"  # one failure per line, used up one by one
lines = failures.read_text().splitlines() if failures.exists() else []
if lines:
    failures.write_text(chr(10).join(lines[1:]))
    if lines[0]:
        fail(lines[0], 255 if verb in ("ssh", "scp") else 1)

name = next((n.partition(":")[0] for n in names if ":" in n), names[0])
machine = cloud / name
state = machine / "state"
if verb == "create":
    if machine.exists():
        fail("ALREADY_EXISTS")
    hosts = {"v6e-16": 4}.get(options["accelerator-type"], 1)
    for worker in range(hosts):
        (machine / str(worker)).mkdir(parents=True)
    (machine / "labels").write_text(options["labels"])
    state.write_text("READY")
elif not machine.exists():
    fail(f"NOT_FOUND: Resource {name} was not found")
elif verb == "describe":
    assert options["format"] == "value(state,labels.tracewarehouse)"
    print(state.read_text() + chr(9) + (machine / "labels").read_text().removeprefix("tracewarehouse="))
elif verb == "delete":
    shutil.rmtree(machine)
elif state.read_text() != "READY":
    fail("connection refused", 255)
else:
    workers = [w for w in sorted(machine.iterdir()) if w.is_dir() and options["worker"] in ("all", w.name)]
    if verb == "scp":
        source, target = names
        for w in workers:
            if ":" in target:
                shutil.copy(source, w / target.partition(":")[2])
            else:
                there = w / source.partition(":")[2]
                shutil.copytree(there, pathlib.Path(target) / there.name)
                if (cloud / "empty_profile").exists():
                    (cloud / "empty_profile").unlink()
                    for profile in (pathlib.Path(target) / there.name).glob("*.xplane.pb"):
                        profile.write_bytes(b"")
    elif (cloud / "lose_connection").exists() and "collect" in options["command"]:
        (cloud / "lose_connection").unlink()
        env = {**os.environ, "HOME": str(workers[0]), "FAKE_HOST": "0", "FAKE_MACHINE": str(machine), "FAKE_PAUSE": "2"}
        subprocess.Popen(["bash", "-c", options["command"]], cwd=workers[0], env=env, stdout=subprocess.DEVNULL)
        time.sleep(0.5)
        fail("connection lost", 255)
    else:
        running = []
        for w in workers:
            env = {**os.environ, "HOME": str(w), "FAKE_HOST": w.name, "FAKE_MACHINE": str(machine)}
            running.append(subprocess.Popen(["bash", "-c", options["command"]], cwd=w, env=env))
        codes = [r.wait() for r in running]
        if not machine.exists() or state.read_text() != "READY":
            fail("connection lost", 255)
        sys.exit(max(codes))
"""

TW = """
import json, os, pathlib, signal, sys, time
from tracewarehouse.collect.capture import is_recorded, staged_capture
from tracewarehouse.collect.experiment import load_experiment, plan
cloud, machine = (pathlib.Path(os.environ[k]) for k in ("FAKE_CLOUD", "FAKE_MACHINE"))
host, output = os.environ["FAKE_HOST"], pathlib.Path(sys.argv[4])
assert sys.argv[1] == "collect" and os.environ["PJRT_DEVICE"] == "TPU"
broken = (cloud / "broken_run").read_text() if (cloud / "broken_run").exists() else None
code = 0
time.sleep(float(os.environ.get("FAKE_PAUSE", "0")))
for spec in plan(load_experiment(pathlib.Path(sys.argv[2]))):
    if is_recorded(output, spec):
        continue
    with (cloud / "recorded").open("a") as f:
        f.write(f"{spec.name} {host}" + chr(10))
    if spec.name == broken:
        code = 1
        continue
    with staged_capture(output, spec.name) as staging:
        (staging / f"host-{host}.xplane.pb").write_bytes(b"x" * 10)
        facts = {"name": spec.name, "hosts": [f"host-{host}"], "spec_digest": spec.digest, "model": {"name": "m"},
                 "dtype": spec.dtype, "batch_size": spec.batch, "input_length": spec.input_length,
                 "output_length": spec.output_length, "mesh": spec.mesh.model_dump()}
        (staging / "manifest.json").write_text(json.dumps(facts))
    if (cloud / "preempt").exists():
        (cloud / "preempt").unlink()
        (machine / "state").write_text("PREEMPTED")
        os.kill(os.getppid(), signal.SIGKILL)
        sys.exit(1)
    if (cloud / "slow").exists():
        time.sleep(60)
sys.exit(code)
"""


class Cloud:
    """A fake gcloud on PATH, whose virtual machines are folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cloud"
        self.output = folder / "captures"
        self.state = State(folder / "state.json")
        programs = folder / "bin"
        for path in (self.folder, programs):
            path.mkdir()
        self._program(programs / "gcloud", GCLOUD)
        self._program(self.folder / "tw", TW)
        self.setup = f"mkdir -p tracewarehouse-venv/bin && cp {self.folder / 'tw'} tracewarehouse-venv/bin/tw"
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPO),
            "FAKE_CLOUD": str(self.folder),
        }
        self.experiment = folder / "experiment.yaml"
        self.experiment.write_text(
            "defaults: {device: tpu, batch: 16}\nruns: [{mesh: tp=4}, {mesh: 'dp=2,tp=2'}, {mesh: 'dp=4,tp=4'}]\n"
        )

    def _program(self, path: Path, source: str) -> None:
        path.write_text(f"#!{sys.executable}\n{textwrap.dedent(source)}")
        path.chmod(0o755)

    def command(self, *arguments: str | Path) -> list[str]:
        verb = str(arguments[0])
        more: list[str | Path] = [] if verb == "plan" else ["--state", self.state.path]
        more += ["--backoff", "0.01"] if verb in ("create", "run") else []
        more += ["--setup", self.setup, "--poll", "0.2"] if verb == "run" else []
        more += ["-o", self.output] if verb in ("run", "fetch") else []
        code = "import sys; from tracewarehouse.cli import main; main()"
        return [sys.executable, "-c", code, "tpu", *map(str, [*arguments, *more])]

    def tw(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )

    def fail(self, verb: str, *texts: str) -> None:
        (self.folder / f"fail_{verb}").write_text("\n".join(texts))

    def calls(self, verb: str = "") -> list[str]:
        path = self.folder / "calls.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return ["gcloud " + " ".join(c) for c in lines if verb in ("", c[3])]

    def recorded(self) -> list[str]:
        return sorted((self.folder / "recorded").read_text().splitlines())

    def captures(self) -> list[str]:
        """Finished ones: a copy that is still being put together has a hidden name, which glob finds as well."""
        return sorted(p.parent.name for p in self.output.glob("[!.]*/manifest.json"))

    def occupy(self, name: str, labels: str = "") -> None:
        """Somebody else's slice."""
        (self.folder / name / "0").mkdir(parents=True)
        (self.folder / name / "state").write_text("READY")
        (self.folder / name / "labels").write_text(labels)


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path)


DP2TP2, TP4, DP4TP4 = "llama-dp2tp2-b16-i32-o17-tpu", "llama-tp4-b16-i32-o17-tpu", "llama-dp4tp4-b16-i32-o17-tpu"


def test_from_create_to_delete(cloud: Cloud) -> None:
    made = cloud.tw("create", "one", "--type", "v6e-4", "--project", "mine")
    assert made.returncode == 0, made.stderr
    assert made.stdout == "one\tv6e-4\tus-east1-d\t4 chips\t1 hosts\n"

    done = cloud.tw("run", "one", cloud.experiment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(cloud.output / n) for n in (TP4, DP2TP2)]
    assert f"left out, for slices of another size: {DP4TP4}" in done.stderr
    assert "one still runs and costs" in done.stderr

    gone = cloud.tw("delete", "one")
    assert gone.returncode == 0, gone.stderr
    assert cloud.state.slices() == {}
    assert not (cloud.folder / "one").exists()
    shown = [line for line in (made.stderr + done.stderr + gone.stderr).splitlines() if line.startswith("gcloud ")]
    assert len(shown) == len(cloud.calls())
    assert all("--zone=us-east1-d --project=mine" in call for call in cloud.calls())
    assert "--accelerator-type=v6e-4 --version=v2-alpha-tpuv6e --labels=tracewarehouse=" in cloud.calls("create")[0]
    assert cloud.calls("create")[0].endswith(" --spot")


def test_all_hosts_of_a_slice_give_one_capture(cloud: Cloud) -> None:
    cloud.tw("create", "big", "--type", "v6e-16")

    done = cloud.tw("run", "big", cloud.experiment, "--delete")

    assert done.returncode == 0, done.stderr
    assert load_manifest(cloud.output / DP4TP4 / "manifest.json").hosts == [f"host-{i}" for i in range(4)]
    assert len(list((cloud.output / DP4TP4).glob("*.xplane.pb"))) == 4
    assert cloud.recorded() == [f"{DP4TP4} {i}" for i in range(4)]
    assert cloud.state.slices() == {}


def test_preemption_creates_again_and_goes_on_by_content(cloud: Cloud) -> None:
    cloud.tw("create", "one", "--type", "v6e-4")
    (cloud.folder / "preempt").touch()
    cloud.fail("create", "no more capacity in the zone")

    done = cloud.tw("run", "one", cloud.experiment)

    assert done.returncode == 0, done.stderr
    assert cloud.captures() == [DP2TP2, TP4]
    assert "one is PREEMPTED: it is deleted and created again" in done.stderr
    assert "no more capacity" in done.stderr
    assert len(cloud.calls("delete")) == 1
    assert len(cloud.calls("create")) == 3  # at first, without capacity, again
    assert not list(cloud.output.glob(".*"))


def test_a_second_call_records_only_what_is_missing(cloud: Cloud) -> None:
    cloud.tw("create", "one", "--type", "v6e-4")
    (cloud.folder / "broken_run").write_text(TP4)

    first = cloud.tw("run", "one", cloud.experiment)
    assert first.returncode == 1
    assert f"error: not recorded: {TP4}" in first.stderr
    (cloud.folder / "broken_run").unlink()
    second = cloud.tw("run", "one", cloud.experiment)
    third = cloud.tw("run", "one", cloud.experiment)

    assert (second.returncode, third.returncode) == (0, 0)
    assert cloud.recorded() == [f"{DP2TP2} 0", f"{TP4} 0", f"{TP4} 0"]


def test_a_lost_connection_is_tried_again(cloud: Cloud) -> None:
    cloud.tw("create", "one", "--type", "v6e-4")
    cloud.fail("ssh", "broken pipe", "", "broken pipe")

    done = cloud.tw("run", "one", cloud.experiment)

    assert done.returncode == 0, done.stderr
    assert cloud.captures() == [DP2TP2, TP4]
    assert len(cloud.calls("create")) == 1


def test_every_kind_of_call_may_fail_now_and_then(cloud: Cloud) -> None:
    """Of each verb every fifth call fails, as on a bad line; the deletion at its first two attempts."""
    cloud.tw("create", "one", "--type", "v6e-4")
    for verb in ("describe", "scp", "ssh"):
        cloud.fail(verb, *["broken pipe", "", "", "", ""] * 20)
    cloud.fail("delete", "internal error", "internal error")

    done = cloud.tw("run", "one", cloud.experiment, "--delete")

    assert done.returncode == 0, done.stderr
    assert cloud.captures() == [DP2TP2, TP4]
    assert cloud.recorded() == [f"{DP2TP2} 0", f"{TP4} 0"]
    assert len(cloud.calls("create")) == 1
    assert len(cloud.calls("delete")) == 3
    assert cloud.state.slices() == {}
    assert not (cloud.folder / "one").exists()


def test_a_slice_that_cannot_be_deleted_is_named_as_one_that_costs(cloud: Cloud) -> None:
    cloud.tw("create", "one", "--type", "v6e-4")
    cloud.fail("delete", *["internal error"] * 9)

    done = cloud.tw("run", "one", cloud.experiment, "--delete")

    assert done.returncode == 1
    assert "error: one could not be deleted and may still cost: ERROR" in done.stderr
    assert "one still runs and costs; tw tpu delete one ends it" in done.stderr
    assert list(cloud.state.slices()) == ["one"]
    assert cloud.captures() == [DP2TP2, TP4]


def test_it_gives_up_after_the_attempts(cloud: Cloud) -> None:
    cloud.tw("create", "one", "--type", "v6e-4")
    cloud.fail("ssh", *["broken pipe"] * 9)

    done = cloud.tw("run", "one", cloud.experiment, "--attempts", "2", "--delete")

    assert done.returncode == 1
    assert "error: one (READY): the collector could not be installed: ERROR" in done.stderr
    assert "Traceback" not in done.stderr
    assert cloud.state.slices() == {}


def test_an_installation_that_fails_is_not_tried_again(cloud: Cloud) -> None:
    cloud.tw("create", "one", "--type", "v6e-4")
    cloud.setup = "echo no such package >&2; exit 3"

    done = cloud.tw("run", "one", cloud.experiment)

    assert done.returncode == 1
    assert "could not be installed (exit code 3): no such package" in done.stderr
    assert len(cloud.calls("ssh")) == 1


@pytest.mark.parametrize(
    ("number", "is_deleted"), [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, True)]
)
def test_who_ends_it_can_have_the_slice_deleted(cloud: Cloud, number: signal.Signals, is_deleted: bool) -> None:
    cloud.tw("create", "one", "--type", "v6e-4")
    (cloud.folder / "slow").touch()
    arguments = ["run", "one", cloud.experiment, *(["--delete"] if is_deleted else [])]
    with subprocess.Popen(
        cloud.command(*arguments), env=cloud.environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 300
        while not cloud.captures() and time.monotonic() < deadline:  # copied back while the rest still runs
            time.sleep(0.1)
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=120)

    assert process.returncode == 128 + number
    assert cloud.captures() == [TP4]
    assert (cloud.state.slices() == {}) is is_deleted
    assert (cloud.folder / "one").exists() is not is_deleted
    assert ("one still runs and costs" in said) is not is_deleted


def test_fetch_copies_what_is_finished(cloud: Cloud, tmp_path: Path) -> None:
    cloud.tw("create", "one", "--type", "v6e-4")
    cloud.tw("run", "one", cloud.experiment)
    cloud.output = tmp_path / "elsewhere"

    done = cloud.tw("fetch", "one", cloud.experiment)

    assert done.stdout.splitlines() == [str(cloud.output / n) for n in (TP4, DP2TP2)]
    assert cloud.tw("fetch", "one", cloud.experiment).stdout == ""


@pytest.mark.parametrize(
    ("said", "error"), [("Quota limit reached", "Quota limit"), ("PERMISSION_DENIED", "not created.*PERMISSION_DENIED")]
)
def test_a_refused_slice_is_not_tried_again_and_not_kept(cloud: Cloud, said: str, error: str) -> None:
    cloud.fail("create", said)

    done = cloud.tw("create", "one", "--type", "v6e-4", "--attempts", "5")

    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("error: one (v6e-4 in us-east1-d) was not created")
    assert len(cloud.calls("create")) == 1
    assert cloud.state.slices() == {}


def test_a_first_question_that_fails_is_asked_again(cloud: Cloud) -> None:
    cloud.fail("describe", "broken pipe", "UNAVAILABLE")

    done = cloud.tw("create", "one", "--type", "v6e-4")

    assert done.returncode == 0, done.stderr
    assert "attempt 2 of 3" in done.stderr
    assert len(cloud.calls("describe")) == 3
    assert len(cloud.calls("create")) == 1


def test_a_question_that_keeps_failing_ends_it(cloud: Cloud) -> None:
    cloud.fail("describe", *["broken pipe"] * 9)

    done = cloud.tw("create", "one", "--type", "v6e-4")

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: the state of one is not known: ERROR")
    assert len(cloud.calls("describe")) == 3 + 1  # and once to see whether it has to be kept on record
    assert cloud.calls("create") == []


def test_who_may_not_ask_is_told_at_once(cloud: Cloud) -> None:
    cloud.fail("describe", *["PERMISSION_DENIED: no access"] * 9)

    done = cloud.tw("create", "one", "--type", "v6e-4")

    assert "PERMISSION_DENIED" in done.stderr.splitlines()[-1]
    assert len(cloud.calls("describe")) == 1 + 1
    assert cloud.calls("create") == []


def test_nothing_outside_of_the_quota_is_asked_for(cloud: Cloud) -> None:
    for number, arguments in enumerate(
        [("--type", "v6e-128"), ("--type", "v4-64", "--zone", "us-east1-d"), ("--type", "v5litepod-4", "--on-demand")]
    ):
        done = cloud.tw("create", f"no{number}", *arguments)
        assert done.returncode == 1
        assert "outside of the quota" in done.stderr
    assert cloud.calls() == []


def test_only_what_was_created_here_is_deleted(cloud: Cloud) -> None:
    done = cloud.tw("delete", "theirs")

    assert done.returncode == 1
    assert "no slice 'theirs' was created here" in done.stderr
    assert cloud.calls() == []


@pytest.mark.parametrize("labels", ["", "tracewarehouse=another"])
def test_a_slice_of_somebody_else_is_neither_used_nor_kept_nor_deleted(cloud: Cloud, labels: str) -> None:
    cloud.occupy("theirs", labels)

    done = cloud.tw("create", "theirs", "--type", "v6e-4")

    assert done.returncode == 1
    assert "theirs in us-east1-d was not created here: its label tracewarehouse is " in done.stderr
    assert cloud.state.slices() == {}
    assert [call.split()[4] for call in cloud.calls()] == ["describe"]
    assert cloud.tw("delete", "theirs").returncode == 1
    assert (cloud.folder / "theirs" / "state").exists()


def test_a_slice_that_another_replaced_meanwhile_is_left_alone(cloud: Cloud) -> None:
    cloud.tw("create", "one", "--type", "v6e-4")
    (cloud.folder / "one" / "labels").write_text("tracewarehouse=another")

    for verb in (["delete", "one"], ["run", "one", cloud.experiment]):
        done = cloud.tw(*verb)
        assert done.returncode == 1
        assert "was not created here" in done.stderr
    assert (cloud.folder / "one").exists()
    assert cloud.calls("delete") == []


def test_a_name_that_is_taken_between_question_and_creation(cloud: Cloud) -> None:
    cloud.fail("create", "ALREADY_EXISTS: Resource one already exists")

    done = cloud.tw("create", "one", "--type", "v6e-4")

    assert (done.returncode, cloud.state.slices()) == (1, {})
    assert "was not created here and is left alone" in done.stderr


@pytest.mark.parametrize("name", ["One", "a_b", "-x", "a b", "a;b", "a/b", "ü", "x" * 64, "a-", "7a"])
def test_a_name_that_google_would_refuse_is_never_passed_on(cloud: Cloud, name: str) -> None:
    done = (
        cloud.tw("create", "--type", "v6e-4", "--", name)
        if name == "-x"
        else cloud.tw("create", name, "--type", "v6e-4")
    )

    assert done.returncode in (1, 2)
    assert cloud.calls() == []
    assert not cloud.state.slices()


def test_sweeps_at_the_same_time_share_the_quota(cloud: Cloud) -> None:
    """Six ask for 32 chips each of the 64 + 64 of v6e, at once: four get them, and nothing is left to plan with."""
    started = [
        subprocess.Popen(
            cloud.command("create", f"s{n}", "--type", "v6e-32"),
            env=cloud.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(6)
    ]
    said = [p.communicate(timeout=120)[1] for p in started]

    zones = [s.zone for s in cloud.state.slices().values()]
    assert sorted(zones) == ["europe-west4-a"] * 2 + ["us-east1-d"] * 2
    assert sorted(p.returncode for p in started) == [0, 0, 0, 0, 1, 1]
    assert sum("outside of the quota" in text for text in said) == 2
    plan_now = cloud.tw("plan", cloud.experiment, "--generation", "v6e", "--state", cloud.state.path)
    assert plan_now.returncode == 1
    assert "64 of them in use" in plan_now.stderr


def test_a_copy_without_its_profile_is_copied_again(cloud: Cloud) -> None:
    cloud.tw("create", "one", "--type", "v6e-4")
    (cloud.folder / "empty_profile").touch()

    done = cloud.tw("run", "one", cloud.experiment)

    assert done.returncode == 0, done.stderr
    assert "a host's copy has no profile in it" in done.stderr
    assert cloud.captures() == [DP2TP2, TP4]
    assert all(p.stat().st_size for p in cloud.output.glob("[!.]*/*.xplane.pb"))


def test_a_fetch_that_was_killed_leaves_nothing_for_long(cloud: Cloud) -> None:
    cloud.tw("create", "one", "--type", "v6e-4")
    left = cloud.output / ".fetch-abc.999999999.partial"
    left.mkdir(parents=True)

    assert cloud.tw("fetch", "one", cloud.experiment).returncode == 0
    assert not left.exists()


def test_a_lost_connection_does_not_lose_the_runs_to_the_collector_that_still_runs(cloud: Cloud) -> None:
    """The first connection breaks while its collector goes on for two seconds; the second waits for it."""
    cloud.tw("create", "one", "--type", "v6e-4")
    (cloud.folder / "lose_connection").touch()

    done = cloud.tw("run", "one", cloud.experiment)

    assert done.returncode == 0, done.stderr
    assert cloud.captures() == [DP2TP2, TP4]
    assert cloud.recorded() == [f"{DP2TP2} 0", f"{TP4} 0"]


def test_published_models_are_fetched_on_the_hosts() -> None:
    command = collect_command([run_spec(model="Qwen/Qwen3-4B", device="tpu"), run_spec(device="tpu")])

    assert command.count("hf\" download Qwen/Qwen3-4B --include '*.json' --include '*.safetensors'; ") == 1
    assert command.count("download") == 1


def test_a_host_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gcloud = tmp_path / "gcloud"
    gcloud.write_text("#!/bin/sh\nexec sleep 60\n")
    gcloud.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("tracewarehouse.collect.tpu.gcloud.ANSWER_S", 0.2)

    done = Gcloud(lambda line: None).ssh(entry("a", 4, "z", True), "ls", "0")

    assert (done.returncode, done.stderr) == (255, "no answer within 0.2 s")


def test_wrong_usage_and_no_gcloud(cloud: Cloud) -> None:
    assert cloud.tw("create", "one").returncode == 2
    cloud.environment["PATH"] = "/nowhere"
    done = cloud.tw("create", "one", "--type", "v6e-4")
    assert (done.returncode, "gcloud is not on PATH" in done.stderr) == (1, True)
    assert "'v9-4' is not known; known are v4-8" in cloud.tw("create", "one", "--type", "v9-4").stderr


def entry(name: str, chips: int, zone: str, spot: bool) -> Slice:
    return Slice(
        name=name,
        owner="me",
        generation="v4",
        accelerator_type="x",
        chips=chips,
        hosts=1,
        zone=zone,
        spot=spot,
        runtime="r",
    )


def test_quota_counts_what_exists() -> None:
    quota = load_quota()
    used = [entry("a", 16, "us-central2-b", False), entry("b", 32, "us-central2-b", True)]

    assert quota.pool("v4", 16, used=used).spot is False
    with pytest.raises(QuotaError, match=r"32 chips of v4 .*on demand: 32 chips, 16 of them.*spot: 32 chips, 32 of"):
        quota.pool("v4", 32, used=used)


def test_quota_is_that_of_the_project() -> None:
    chips = {(p.generation, p.zone, p.spot): p.chips for p in load_quota().quota}

    assert chips == {
        ("v4", "us-central2-b", False): 32,
        ("v4", "us-central2-b", True): 32,
        ("v5e", "us-central1-a", True): 64,
        ("v5e", "europe-west4-b", True): 64,
        ("v6e", "us-east1-d", True): 64,
        ("v6e", "europe-west4-a", True): 64,
    }


def test_accelerator_types() -> None:
    quota = load_quota()

    assert quota.of_type("v4-8") == ("v4", 4)  # two cores per chip
    assert quota.of_type("v5litepod-16") == ("v5e", 16)
    with pytest.raises(TpuError, match="no slice of 2 chips; it has slices of 1, 4, 8"):
        quota.generation("v6e").accelerator_type(2)


@pytest.mark.parametrize("text", ["[", "generations: {}\nquota: [{generation: v1, zone: z, spot: true, chips: 1}]"])
def test_a_wrong_quota_table_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "quota.yaml").write_text(text)

    with pytest.raises(TpuError, match="cannot be read as a quota table"):
        load_quota(tmp_path / "quota.yaml")


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")

    with pytest.raises(TpuError, match="cannot be read as a record of slices"):
        State(tmp_path / "state.json").slices()


def test_hosts_that_recorded_another_run_are_not_merged(tmp_path: Path) -> None:
    spec = run_spec(device="tpu")
    part = tmp_path / "0" / spec.name
    part.mkdir(parents=True)
    (part / "manifest.json").write_text(
        '{"name": "x", "model": {"name": "m"}, "dtype": "float32", "batch_size": 1, "input_length": 1, '
        '"output_length": 1, "mesh": {"axes": {"tp": 4}}, "spec_digest": "other"}'
    )

    with pytest.raises(CollectError, match="another configuration"):
        merge_hosts([part], tmp_path / "out", spec)
    assert not is_recorded(tmp_path / "out", spec)


def test_a_run_for_cpu_is_refused() -> None:
    with pytest.raises(TpuError, match="set device: tpu"):
        plan_slices(Experiment.of(run_spec()), "v6e", load_quota())


STUDY = [name for name in ready_made() if name.startswith("tpu_")]


def test_the_study_covers_every_generation() -> None:
    assert STUDY == ["tpu_v4", "tpu_v5e", "tpu_v6e"]


@pytest.mark.parametrize("name", STUDY)
def test_every_run_of_the_study_fits_its_chips_and_the_quota(name: str) -> None:
    experiment = load_experiment(Path(name))

    slices = plan_slices(experiment, name.removeprefix("tpu_"), load_quota())

    runs = plan(experiment)
    assert sorted(r.name for s in slices for r in s.runs) == sorted(r.name for r in runs)
    assert all(r.name in s.memory for s in slices for r in s.runs)
    models = {r.model.partition("/")[2] for r in runs}
    assert models >= {"DeepSeek-V2-Lite", "DeepSeek-V3.1-Base", "Qwen2.5-32B", "Llama-3.1-8B", "Llama-3.1-70B"}


def test_the_study_of_one_generation_does_not_fit_a_smaller_one() -> None:
    with pytest.raises(ExperimentError, match="and a TPU v5e chip has 16 GB"):
        plan_slices(load_experiment(Path("tpu_v6e")), "v5e", load_quota())


def test_plan_prints_slices_runs_and_memory(cloud: Cloud) -> None:
    done = cloud.tw("plan", "tpu_v6e", "--generation", "v6e")

    assert done.returncode == 0, done.stderr
    assert "v6e-64\t64 chips\t16 hosts\tus-east1-d\tspot" in done.stdout
    assert "DeepSeek-V3.1-Base-ep8tp8" in done.stdout
    assert "GB (weights" in done.stdout
    assert cloud.calls() == []
