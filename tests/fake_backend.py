"""A backend without any machine learning stack: it writes a built profile, as a profiler would write a real one."""

from __future__ import annotations

import os
from pathlib import Path

from tiny_capture import tiny_capture

from tracewarehouse.collect.errors import MissingDependencyError
from tracewarehouse.collect.harness.backend import Recording
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.ingest.capture.manifest import ModelFacts, PhaseMark


class FakeBackend:
    """Records a model with two tensor-parallel devices."""

    name = "fake"

    def require(self) -> None:
        """Pretends to be missing when told so."""
        if os.environ.get("FAKE_BACKEND_MISSING"):
            raise MissingDependencyError("the fake backend is not installed: pip install fake")

    def environment(self, spec: RunSpec) -> dict[str, str]:
        """One variable, by which the test sees that it was set in time."""
        return {"FAKE_BACKEND_MESH": str(spec.mesh)}

    def record(self, spec: RunSpec, capture: Path) -> Recording:
        """Write the profile."""
        folder = capture / "plugins" / "profile" / "one"
        folder.mkdir(parents=True)
        tiny_capture().write(folder / "fakehost.xplane.pb")
        return Recording(
            model=ModelFacts(name="fake-model", num_layers=spec.layers),
            phases=[PhaseMark(name="prefill", step=0, start_ns=1, end_ns=2)],
            hosts=["fakehost"] if spec.seed != 13 else ["nobody"],
            checks={"mesh_seen": os.environ["FAKE_BACKEND_MESH"]},
        )
