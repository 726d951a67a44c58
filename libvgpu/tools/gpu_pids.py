"""Finds out by which PIDs NVML names processes, and if it shows their memory.

The library finds itself in NVML's lists and samples by its own PID or by the one that the agent
wrote into its slot, the PID on the host. Drivers differ in which of the two they show to a caller
in a PID namespace, and a container is in one. So the same program asks outside and inside.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpu_case import CaseError, Deadline, NotRun, Started, case, environment
from gpu_tools import UNSHARE, Tools

WORK_S, START_S, KERNEL_US = 1.3, 20.0, 500
#: A context takes at least this much of a real device.
LEAST_CONTEXT = 1 << 20
LISTS = ("compute", "graphics", "mps", "compute_v1", "details")
SAMPLES = ("samples", "samples_info", "accounting")
NOT_AVAILABLE = (1 << 64) - 1
MEMORY = "The memory of a container stays within its limit"
COMPUTE = "A share of compute is kept."


def language(pid: int, *, own: int, outer: int) -> str:
    """Return whose PID it is: the process's own, the one outside its namespace, or neither."""
    return "own" if pid == own else "outer" if pid == outer else "unknown"


def entry_of(
    call: dict[str, Any], before: dict[str, Any] | None, *, own: int, outer: int
) -> tuple[str, list[int]]:
    """Return the language of a call and the entry of our process.

    If no entry has one of our two PIDs, a single new entry counts as ours.
    """
    if call["result"]:
        return f"no answer ({call['result']})", []
    for entry in call["entries"]:
        if language(entry[0], own=own, outer=outer) != "unknown":
            return language(entry[0], own=own, outer=outer), entry
    known = {entry[0] for entry in before["entries"]} if before else set()
    new = [entry for entry in call["entries"] if entry[0] not in known]
    if before is not None and len(new) == 1:
        return "unknown", new[0]
    return "hidden", []


def described(who: dict[str, Any], *, outer: int) -> dict[str, Any]:
    """Return the language of each call, and what the lists show of a context's memory."""
    own, found = who["pid"], {}
    memory: dict[str, Any] = {}
    for name in LISTS:
        call, before = who["after"][name], who["before"][name]
        found[name], entry = entry_of(call, before, own=own, outer=outer)
        if entry:
            shown = entry[1] != NOT_AVAILABLE
            memory[name] = entry[1] if shown else "not available"
    for name in SAMPLES:
        found[name], _ = entry_of(who[name], None, own=own, outer=outer)
    return {
        "own_pid": own,
        "outer_pid": outer,
        "nspid": who["nspid"],
        "speaks": found,
        "memory_shown": memory,
        "context_bytes_of_device": who["used_after"] - who["used_before"],
    }


def judged(found: dict[str, Any]) -> dict[str, Any]:
    """Return the faults: a context that costs nothing, and a PID that the library cannot know."""
    wrong, limits = [], []
    if found["context_bytes_of_device"] < LEAST_CONTEXT:
        wrong.append(
            f"a context takes {found['context_bytes_of_device']} bytes of the device: "
            "what contexts take cannot be counted here"
        )
        limits.append(MEMORY)
    for name, what in (("compute", MEMORY), ("samples", COMPUTE)):
        speaks = found["speaks"][name]
        if speaks in ("own", "outer"):
            continue
        wrong.append(
            f"NVML's {name} call shows process {found['own_pid']} (outside {found['outer_pid']}) "
            f"by no PID that it can know: {speaks}"
        )
        limits.append(what)
    if found.get("speaks_outside", "outer") != "outer":
        wrong.append(
            f"NVML's list shows process {found['outer_pid']} to nobody outside its namespace: "
            "the agent cannot find it"
        )
        limits.append(MEMORY)
    return {"wrong": wrong, "limits": limits}


class Pids:
    """Runs the program outside a PID namespace and in one."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def rows(self, deadline: Deadline, *, may_unshare: bool) -> list[dict[str, Any]]:
        """Return a row for each of the two."""

        def inside(own: Deadline) -> dict[str, Any]:
            if not may_unshare:
                raise NotRun("this user may not make a PID namespace (root may)")
            return self._ask(UNSHARE, own)

        bodies = (
            ("PIDs as this check sees them", lambda own: self._ask((), own)),
            ("PIDs in a PID namespace", inside),
        )
        return [
            case(name, body, limit_s=START_S + WORK_S, deadline=deadline) for name, body in bodies
        ]

    def _ask(self, prefix: tuple[str, ...], own: Deadline) -> dict[str, Any]:
        words = self._tools.rounds(KERNEL_US, own)
        seconds = self._tools.seconds(WORK_S)
        command = [*prefix, self._tools.measure, "who", seconds, *words, "--gate", "1"]
        program = Started(command, env=environment(self._tools.library))
        try:
            program.first_answer(own.left())
            outer = child_of(program.pid) if prefix else program.pid
            outside = self._tools.look(own)
            program.go()
            who = program.finish(own.left())[-1]
        finally:
            program.kill()
        found = described(who, outer=outer)
        found["speaks_outside"], entry = entry_of(
            outside["after"]["compute"], None, own=0, outer=outer
        )
        found["memory_shown_outside"] = entry[1] if entry else "not shown"
        return {**found, "series": {"inside": who, "outside": outside}, **judged(found)}


def child_of(parent: int, proc: Path = Path("/proc")) -> int:
    """Return the PID of the only child of a process.

    Raises:
        CaseError: It has none.
    """
    for entry in proc.iterdir():
        if entry.name.isdigit() and _parent(entry) == parent:
            return int(entry.name)
    raise CaseError(f"process {parent} has no child: did unshare fail?")


def _parent(entry: Path) -> int:
    try:
        return int(os.fsdecode((entry / "stat").read_bytes()).rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return -1
