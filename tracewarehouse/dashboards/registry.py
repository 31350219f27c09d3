"""Lists every chart: its name, its title, the function that draws it, and what the warehouse must have for it.

`tw report` with its `--chart`, `tw serve`, `tracewarehouse.dashboards` and the documentation all read this list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

NO_COLLECTIVES = "The capture holds no collective on a device."

_NO_OPS = "The capture holds no op of a device: only the host was profiled, or its op events were lost."
_NO_STEPS = "The capture marks no steps on a device, and none could be inferred; `tw ingest --step` names the program."
_NOT_WHOLE = "No execution of a collective has all of its ranks in the capture, so its transfer time is not known."


@dataclass(frozen=True)
class Chart:
    """A chart that can be drawn; called with a warehouse and its subject, it draws it.

    Attributes:
        name: its name on the command line, in links and in names of files.
        subject: what it draws: a run, many runs, or a comparison of some runs with others.
        function: the module of this package and the function that draws it.
        title: its heading; a function with options may word it more precisely.
        metrics: the metrics that its numbers come from.
        needs: the reason why there is nothing to draw where its query has no row.
        is_folded: whether pages show it only when they are asked, since few readers need it.
        picture: the beginning of the name of the capture in data/ that the documentation shows it of; empty for none.
    """

    name: str
    subject: Literal["run", "runs", "comparison"]
    function: str
    title: str
    metrics: tuple[str, ...]
    needs: str
    picture: str = ""
    is_folded: bool = False

    @property
    def draw(self) -> Callable[..., Any]:
        """The function, which returns a `Figure`; its module, and Altair with it, is imported now."""
        module, _, name = self.function.partition(".")
        function: Callable[..., Any] = getattr(import_module(f"tracewarehouse.dashboards.{module}"), name)
        return function

    def __call__(self, *subject: Any) -> Any:
        """Draw the chart of a subject; returns a `Figure`."""
        return self.draw(*subject)


CHARTS: dict[str, Chart] = {
    chart.name: chart
    for chart in (
        Chart("timeline", "run", "ops.device_timeline", "Device timeline", ("op_time_share",), _NO_OPS, "deepseek"),
        Chart(
            "steps", "run", "steps.step_parts", "Where each step's time goes",
            ("step_time", "exposed_communication", "device_idle"), _NO_STEPS, "llama",
        ),
        Chart(
            "idle", "run", "steps.idle_parts", "Idle time, by what ends it",
            ("device_idle", "launch_overhead", "host_gap"),
            f"{_NO_STEPS[:-1]}; or the run is predicted, and no host leaves a device idle in it.", is_folded=True,
        ),
        Chart(
            "step-times", "run", "steps.step_times", "Times of steps and output tokens", ("step_time", "tpot"),
            "In the capture, no step follows another, so no step's time is known.",
        ),
        Chart(
            "decode-by-context", "run", "steps.decode_by_context", "Decode time against context length",
            ("step_time", "tpot"),
            "The length of contexts is not known (no manifest, card or batches), or no decode step has a time.",
        ),
        Chart(
            "exposed-communication", "run", "communication.exposed_communication", "Exposed communication",
            ("exposed_communication", "communication_fraction"), NO_COLLECTIVES, "deepseek",
        ),
        Chart(
            "collective-time", "run", "communication.collective_time", "Collectives: transfer, waiting, exposed",
            ("collective_transfer", "sync_wait", "exposed_communication"), _NOT_WHOLE,
        ),
        Chart("overlap", "run", "communication.overlap", "Overlap", ("overlap_ratio",), NO_COLLECTIVES, is_folded=True),
        Chart(
            "what-if", "run", "communication.what_if", "What faster hardware would save",
            ("faster_links", "faster_chips"),
            "No collective runs in a step, and no op has a known cost and known peaks.",
        ),
        Chart(
            "traffic", "run", "communication.traffic_volume", "Traffic by parallelism",
            ("traffic_volume", "traffic_by_parallelism"),
            "The capture holds no collective on a device whose message size is known.", "deepseek",
        ),
        Chart(
            "traffic-matrix", "run", "communication.traffic_matrix", "Traffic matrix", ("traffic_matrix",), _NOT_WHOLE,
            is_folded=True,
        ),
        Chart(
            "traffic-intervals", "run", "communication.traffic_intervals", "Time between collectives",
            ("traffic_interval", "traffic_interval_histogram"),
            "No collective follows another on a device in a phase.", is_folded=True,
        ),
        Chart(
            "bandwidth", "run", "communication.bandwidth_by_size", "Bandwidth by message size",
            ("hockney", "collective_transfer", "ici_utilization"), _NOT_WHOLE, is_folded=True,
        ),
        Chart(
            "op-time", "run", "ops.op_time_share", "Op time by category", ("op_time_share",), _NO_OPS, is_folded=True
        ),
        Chart("top-ops", "run", "ops.top_ops", "Top ops", ("op_time_share",), _NO_OPS),
        Chart(
            "layers", "run", "ops.layers", "Layers and parts of the model", ("layer_time",),
            "Neither the names of ops nor repetition in the programs shows layers or parts of the model.",
        ),
        Chart(
            "roofline", "run", "ops.roofline", "Roofline", ("roofline",),
            "The capture states no floating-point operations and bytes of instructions.",
        ),
        Chart(
            "memory", "run", "ops.memory_in_use", "Memory in use", ("memory_in_use",),
            "The capture has no allocations of memory with the bytes in use.",
        ),
        Chart(
            "pareto", "runs", "runs.pareto", "Throughput against speed for a user", ("tpot", "throughput"),
            "No run has both: throughput needs a batch size (manifest or card) and a prefill, TPOT two decode steps in "
            "a row.",
        ),
        Chart(
            "study-parts", "runs", "runs.study_parts", "Where a step goes in each configuration",
            ("step_time", "exposed_communication", "device_idle"), "No run has a step whose time is known.",
        ),
        Chart(
            "parallelisms", "runs", "runs.parallelisms", "TP, DP, EP, SP and PP beside each other",
            ("tpot", "throughput", "communication_fraction", "traffic_volume"),
            "No run has a known mesh and a rate, exposed communication or traffic.",
        ),
        Chart(
            "mean-layers", "runs", "ops.mean_layers", "One mean layer of each run", ("layer_time",),
            "Neither the names of ops nor repetition in the programs shows the layers of a run.",
        ),
        Chart(
            "sweep", "runs", "runs.sweep_heat_map", "Sweep by batch, prompt length and mesh", ("tpot",),
            "No run has the value, a batch size and a prompt length (manifest or card).",
        ),
        Chart(
            "scaling", "runs", "runs.scaling", "Scaling over chips", ("scaling_efficiency", "throughput"),
            "No workload was run on two numbers of chips: model, batch and lengths must be the same.",
        ),
        Chart(
            "overlap-ratio-against-step-time", "runs", "runs.metric_against_metric", "step_time against overlap_ratio",
            ("overlap_ratio", "step_time"), "No run has both overlap_ratio and step_time in a phase.",
        ),
        Chart(
            "tpot-over-time", "runs", "runs.value_over_time", "tpot over time", ("tpot",),
            "No run has tpot and the time of its capture.",
        ),
        Chart(
            "faster-links", "runs", "runs.faster_links", "What links twice as fast would save", ("faster_links",),
            "No run on devices with links has exposed collectives in its steps.",
        ),
        Chart(
            "differences", "comparison", "runs.step_differences", "What changed a step", ("step_time",),
            "The two sides have no phase with steps on devices in common.",
        ),
    )
}  # fmt: skip
"""Every chart by its name, in the order of the page."""


FIRST = ("timeline", "differences-part")
"""The charts that a page shows before its numbers."""
RUN_CHARTS = {name: chart for name, chart in CHARTS.items() if chart.subject == "run"}
STUDY_CHARTS = {name: chart for name, chart in CHARTS.items() if chart.subject == "runs"}
