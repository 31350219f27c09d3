"""Prints what XProf says of one xplane capture, as JSON; docs/agreement.py runs it with an interpreter that has XProf.

python docs/xprof_numbers.py CAPTURE.xplane.pb

XProf writes caches beside a capture and may end the process, so it reads a copy in a process of its own.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def numbers(capture: Path) -> dict[str, float]:
    """Totals over the capture, those that XProf has: times in ms, bytes, counts, shares in %."""
    from xprof.convert import raw_to_tool_data  # type: ignore[import-not-found,import-untyped,unused-ignore]

    def answer(tool: str) -> Any:
        data, _ = raw_to_tool_data.xspace_to_tool_data([str(capture)], tool, {})
        return json.loads(data)

    found: dict[str, float] = {}
    properties: dict[str, str] = {}
    for table in answer("overview_page"):
        properties |= table.get("p") or {}
    if (step := float(properties.get("steptime_ms_average") or 0)) > 0:
        found["step_time_ms"] = step
    peaks = [v["profileSummary"] for v in answer("memory_profile").get("memoryProfilePerAllocator", {}).values()]
    if peaks:
        found["memory_bytes"] = max(int(p["peakStats"]["peakBytesInUse"]) for p in peaks)
    table = answer("hlo_stats")
    names = [c["id"] for c in table["cols"]]
    ops = [dict(zip(names, [c and c["v"] for c in row["c"]], strict=True)) for row in table.get("rows", ())]
    if not ops:
        return found
    if "device_idle_time_percent" in properties:
        found["idle_percent"] = float(properties["device_idle_time_percent"].rstrip("%"))
    times: dict[str, float] = defaultdict(float)
    for op in ops:
        times[re.sub(r"([.][0-9]+)+$", "", op["hlo_op_name"])] += op["total_self_time"]
    found["largest_kernel_percent"] = 100 * max(times.values()) / sum(times.values())
    collectives = [op for op in ops if op["category"].removesuffix("-start").removesuffix("-done") in _COLLECTIVES]
    if collectives:
        found["collectives"] = sum(op["occurrences"] for op in collectives)
        found["collectives_ms"] = sum(op["total_self_time"] for op in collectives) / 1e3
    metrics = answer("op_profile")["byProgramExcludeIdle"]["metrics"]
    moved, picoseconds = metrics["rawBytesAccessedArray"][0], metrics["rawTime"]
    if moved and picoseconds:
        found["hbm_gbps"] = moved * 1e3 / picoseconds
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "plugins" / "profile" / "run" / "vm.xplane.pb"
        copy.parent.mkdir(parents=True)
        shutil.copyfile(sys.argv[1], copy)
        sys.stdout.write(json.dumps({"version": version("xprof"), "numbers": numbers(copy)}) + "\n")
