"""The cost that the library adds to calls and to the start of a process."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_case import Deadline, case
from gpu_series import median
from gpu_tools import Tools, share

CALLS, STARTS = 6400, 5
LIMIT_S = 40.0
#: Nanoseconds that docs/limits.md promises, and a part of the call's own cost below which two runs
#: of the same program differ anyway.
PROMISED_NS = {
    "launch": ("A kernel launch costs little more.", {"memory": 5.0, "share": 200.0}),
    "alloc_free": (
        "An allocation and its release cost little more.",
        {"memory": 150.0, "share": 150.0},
    ),
}
NOISE = 0.1
START_ROW, START_MS = "A process starts as fast.", 5.0


def judged_calls(direct: dict[str, Any], loaded: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the added cost of each call, and the promises that it breaks."""
    base = {name: median(values) for name, values in direct.items() if isinstance(values, list)}
    more: dict[str, dict[str, float]] = {name: {} for name in base}
    wrong, limits = [], []
    for setting, figures in loaded.items():
        if not figures["library"]:
            wrong.append(f"{setting}: the library was not loaded")
            continue
        for name, ns in base.items():
            more[name][setting] = round(median(figures[name]) - ns, 1)
    for name, (row, promised) in PROMISED_NS.items():
        for setting, bound in promised.items():
            extra = more[name].get(setting, 0.0)
            if extra > bound + base[name] * NOISE:
                wrong.append(f"{name} costs {extra:.0f} ns more with a limit of {setting}")
                limits.append(row)
    return {"direct_ns": base, "more_ns": more, "wrong": wrong, "limits": limits}


class Costs:
    """The same programs, with and without the library."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def rows(self, deadline: Deadline) -> list[dict[str, Any]]:
        """Return the row of calls, and the row of a process's start."""
        return [
            case(
                "costs of launches and allocations", self._calls, limit_s=LIMIT_S, deadline=deadline
            ),
            case("start of a process", self._start, limit_s=LIMIT_S, deadline=deadline),
        ]

    def _calls(self, own: Deadline) -> dict[str, Any]:
        command = [self._tools.measure, "costs", max(64, int(CALLS * self._tools.scale))]
        direct = self._tools.one(command, own)
        memory = {"CUDA_DEVICE_MEMORY_LIMIT": "4g"}
        loaded = {
            "memory": self._tools.one(command, own, **memory),
            "share": self._tools.one(command, own, **memory, **share(50)),
        }
        return {**judged_calls(direct, loaded), "series": {"direct": direct, **loaded}}

    def _start(self, own: Deadline) -> dict[str, Any]:
        command = [self._tools.measure, "start", 1]
        times: dict[str, list[float]] = {"direct": [], "limited": []}
        with TemporaryDirectory() as folder:
            settings = {
                "CUDA_DEVICE_MEMORY_LIMIT": "4g",
                "VGPU_USAGE_REGION": str(Path(folder, "region")),
            }
            for _ in range(max(2, int(STARTS * self._tools.scale))):
                for name in times:
                    found = self._tools.one(command, own, **(settings if name == "limited" else {}))
                    times[name].append(sum(found[key] for key in found if key.endswith("_ms")))
        more = median(times["limited"]) - median(times["direct"])
        wrong = []
        if more > START_MS + NOISE * median(times["direct"]):
            wrong.append(f"a process starts {more:.1f} ms later")
        return {"more_ms": round(more, 3), "series": times, "wrong": wrong, "limits": [START_ROW]}
