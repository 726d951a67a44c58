"""Checks the address that cuGetProcAddress returns for each function that the library interposes.

The library recognises the driver's answer by its address if the driver exports that address, and
otherwise by the requested name. Under the library, every look-up of an interposed function must
lead to the library.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from gpu_case import CaseError, Deadline, NotRun, case, environment
from gpu_constants import ROOT

CASE = Path(__file__).with_name("entry_case.py")
LIMIT_S = 30.0
FLAGS = (0, 1, 2)  # the default, legacy streams, per-thread streams
OTHER_VERSIONS = (11040, 12000, 12080, 13000)
MEMORY = "The memory of a container stays within its limit"
_ROW = re.compile(
    r"^VGPU_(?:HOOK|GATE)\(\w+, cuda, (?P<symbol>\w+), (?P<base>\w+), (?P<since>\d+),", re.M
)


class LookUp(NamedTuple):
    """One call of cuGetProcAddress."""

    name: str
    version: int
    flags: int


def interposed(table: str) -> dict[str, set[int]]:
    """Return the versions at which each interposed function changed, by its requested name."""
    found: dict[str, set[int]] = {}
    for row in _ROW.finditer(table):
        found.setdefault(row["base"], set()).add(int(row["since"]))
    return found


def symbols(table: str) -> set[str]:
    """Return the exported names that the library interposes."""
    return {row["symbol"] for row in _ROW.finditer(table)}


def look_ups(table: str, cuda: int) -> list[LookUp]:
    """Return every name with each version up to the driver's and each kind of stream."""
    return [
        LookUp(name, version, flags)
        for name, since in sorted(interposed(table).items())
        for version in sorted(since | {cuda, *OTHER_VERSIONS})
        if version <= cuda
        for flags in FLAGS
    ]


def judged_driver(calls: list[LookUp], found: list[Any]) -> dict[str, Any]:
    """Return how many answers are exported addresses, and the names of those that are not."""
    kinds: Counter[str] = Counter()
    hidden = set()
    for call, answer in zip(calls, found):
        kind = "not found" if answer is None else "exported" if answer[1] else "not exported"
        kinds[kind] += 1
        if kind == "not exported":
            hidden.add(call.name)
    wrong = [] if kinds["exported"] or not calls else ["no look-up leads to an exported address"]
    return {"answers": dict(kinds), "not_exported": sorted(hidden), "wrong": wrong}


def judged_library(
    calls: list[LookUp], bare: list[Any], found: list[Any], names: set[str]
) -> dict[str, Any]:
    """Return the look-ups that lead past the library.

    Args:
        calls: The look-ups.
        bare: The answers of the driver alone.
        found: The answers under the library.
        names: The exported names that the library interposes.
    """
    past = set()
    for call, alone, answer in zip(calls, bare, found):
        if alone is None or (alone[1] is not None and alone[1] not in names):
            continue  # an older form that nothing has to interpose
        if answer is None or not str(answer[0]).startswith("libvgpu"):
            past.add(f"{call.name} {call.version} flags {call.flags}")
    wrong = [f"{len(past)} look-ups lead past the library: {', '.join(sorted(past)[:5])}"]
    return {
        "looked_up": len(calls),
        "past_the_library": sorted(past),
        "wrong": wrong if past else [],
        "limits": [MEMORY],
    }


class Entries:
    """The look-ups of this checkout's table on this machine's driver."""

    def __init__(self, library: Path) -> None:
        self._library = library
        self._table = (ROOT / "src" / "symbols.def").read_text()

    def driver_rows(self, deadline: Deadline) -> list[dict[str, Any]]:
        """Return the row of the driver alone."""

        def body(own: Deadline) -> dict[str, Any]:
            calls, answer = self._ask(own)
            found = judged_driver(calls, answer["found"])
            return {**found, "form": answer["form"], "series": _listed(calls, answer["found"])}

        return [case("cuGetProcAddress", body, limit_s=LIMIT_S, deadline=deadline)]

    def library_rows(self, deadline: Deadline) -> list[dict[str, Any]]:
        """Return the row of the library before the driver."""

        def body(own: Deadline) -> dict[str, Any]:
            calls, bare = self._ask(own)
            _, answer = self._ask(own, CUDA_DEVICE_MEMORY_LIMIT="1g")
            return judged_library(calls, bare["found"], answer["found"], symbols(self._table))

        return [
            case("cuGetProcAddress under the library", body, limit_s=LIMIT_S, deadline=deadline)
        ]

    def _ask(self, own: Deadline, **settings: str) -> tuple[list[LookUp], dict[str, Any]]:
        version = self._run([], own, **settings)
        if not version["form"]:
            raise NotRun("this driver has no cuGetProcAddress (older than CUDA 11.3)")
        calls = look_ups(self._table, version["cuda"])
        return calls, self._run(calls, own, **settings)

    def _run(self, calls: list[LookUp], own: Deadline, **settings: str) -> dict[str, Any]:
        try:
            done = subprocess.run(
                [sys.executable, str(CASE)],
                env=environment(self._library, **settings),
                input=json.dumps(calls),
                capture_output=True,
                text=True,
                timeout=max(own.left(), 0.1),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CaseError(f"{CASE.name}: not done in time") from error
        if done.returncode:
            raise CaseError(f"{CASE.name}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def _listed(calls: list[LookUp], found: list[Any]) -> list[list[Any]]:
    return [[*call, *(answer or (None, None))] for call, answer in zip(calls, found)]
