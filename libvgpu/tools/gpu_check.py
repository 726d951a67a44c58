"""Checks the library on the CUDA driver of this machine, which should be a real one.

It has two parts of at most ten minutes each. Part 1 is about the driver: the library's assumptions
about PIDs, samples, marks, timeslices and costs, as raw series. Part 2 is about the library: limits
of memory and compute, its costs, a container's environment, CUDA's runtime library and PyTorch if
they are installed.

It needs only Python 3.8: a machine with a GPU may have neither the project's environment, nor a
network, nor root; checks that need root are tried if possible.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpu_case import CaseError, Deadline
from gpu_compute import Shares
from gpu_container import Container
from gpu_costs import Costs
from gpu_cudart import Runtime
from gpu_driver import Facts
from gpu_entry import Entries
from gpu_machine import describe
from gpu_memory import Memory
from gpu_pids import Pids
from gpu_report import Report, summary
from gpu_tools import Tools
from gpu_torch import Torch

# A part has ten minutes; a rest of them is reserved for ending a program that hangs.
SECONDS = 570.0
PARTS = ("1", "2")
SECTIONS = {
    "1": ("pids", "driver", "entries"),
    "2": ("memory", "container", "costs", "entries", "compute", "cudart", "pytorch"),
}


def sections(
    tools: Tools, machine: dict[str, Any]
) -> dict[str, dict[str, Callable[[Deadline], Iterable[dict[str, Any]]]]]:
    """Return the sections of each part."""
    memory, entries = Memory(tools), Entries(tools.library)
    total, uuid = machine["total_bytes"], machine["uuid"]
    pids, mounts = machine["may_unshare_pids"], machine["may_unshare_mounts"]
    facts = Facts(tools, mps=machine["mps"], mig=bool(machine["mig"]))
    container = Container(tools, uuid, total)
    torch = Torch(tools.library, lambda: memory.used(Deadline(60)), scale=tools.scale)
    first: dict[str, Callable[[Deadline], Iterable[dict[str, Any]]]] = {
        "pids": lambda deadline: Pids(tools).rows(deadline, may_unshare=pids),
        "driver": lambda deadline: facts.rows(deadline),
        "entries": entries.driver_rows,
    }
    second: dict[str, Callable[[Deadline], Iterable[dict[str, Any]]]] = {
        "memory": lambda deadline: memory.rows(total, deadline, may_unshare=pids),
        "container": lambda deadline: container.rows(deadline, may_unshare=pids and mounts),
        "costs": lambda deadline: Costs(tools).rows(deadline),
        "entries": entries.library_rows,
        "compute": lambda deadline: Shares(tools).rows(deadline, may_unshare=pids),
        "cudart": lambda deadline: Runtime(tools).rows(total, deadline),
        "pytorch": lambda deadline: torch.rows(total, deadline),
    }
    return {"1": first, "2": second}


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="the JSON file")
    parser.add_argument("--part", choices=PARTS, help="one part; default: both")
    names = sorted({name for part in SECTIONS.values() for name in part})
    parser.add_argument("--only", choices=names, action="append", help="a section; default: all")
    parser.add_argument("--spin", type=Path, default=Tools.spin)
    parser.add_argument("--measure", type=Path, default=Tools.measure)
    parser.add_argument("--library", type=Path, default=Tools.library)
    parser.add_argument("--scale", type=float, default=1.0, help="shorter windows prove nothing")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each part")
    return parser.parse_args(arguments)


def identify(tools: Tools) -> dict[str, Any]:
    """Return the description of the machine.

    Raises:
        CaseError: There is no usable driver.
    """
    own = Deadline(60)
    info = Memory(tools).run("info", own)[0]
    try:
        card = info["devices"][0]
    except LookupError as error:
        raise CaseError(f"no device: {info}") from error
    try:
        who = tools.one([tools.measure, "who", "0.001", "--rounds", "1000"], own)
    except CaseError:
        who = {}  # the case about PIDs says why
    return describe(card, who)


def main() -> int:
    """Check, print and write the findings.

    Return 1 if a promise is broken or there is no driver.
    """
    asked = parsed()
    tools = Tools(asked.spin, asked.measure, library=asked.library, scale=asked.scale)
    try:
        machine = identify(tools)
    except CaseError as error:
        print(f"gpu-check: no usable CUDA driver here, nothing was checked: {error}")
        return 1
    report = Report(asked.out, machine)
    for name, value in machine.items():
        print(f"{name}: {value}")
    for part in [asked.part] if asked.part else PARTS:
        deadline = Deadline(asked.seconds)
        report.begin(part)
        for section, rows in sections(tools, machine)[part].items():
            if asked.only and section not in asked.only:
                continue
            for row in rows(deadline):
                report.add(part, row)
        report.end(part)
    findings = report.findings()
    print(summary(findings))
    print(f"written to {asked.out}")
    return int(bool(findings["failures"]))


if __name__ == "__main__":
    sys.exit(main())
