"""`kubectl vgpu top`: show the memory and compute usage of slices and devices.

Usage comes directly from the agents. If it were stored in the API, every sample would wake all
watchers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vgpu_api.quantity import MIB, format_mib, read_mib
from vgpu_operator.cli.agents import AgentAnswers
from vgpu_operator.cli.printing import Cell, Portion, Printer, Table


@dataclass(frozen=True, slots=True)
class TopQuery:
    """The rows to show.

    Attributes:
        kind: `slices` or `devices`.
        namespace: The namespace of slices; None: all namespaces.
        node: Show only this node; None: all.
        sort_by: `memory` or `cores`, the largest first, or `name`.
        is_whole: Show all columns, however wide the terminal is.
    """

    kind: str
    namespace: str | None = None
    node: str | None = None
    sort_by: str = "memory"
    is_whole: bool = False


def table(
    query: TopQuery, answers: AgentAnswers, devices: Mapping[str, Mapping[str, Any]]
) -> Table:
    """Return the sorted table.

    Args:
        query: The rows to show.
        answers: The responses of the agents.
        devices: GPUDevices by UUID, for sizes and models.
    """
    if query.kind == "devices":
        return _devices(query, answers, devices)
    return _slices(query, answers)


def _slices(query: TopQuery, answers: AgentAnswers) -> Table:
    header = [
        "CLAIM",
        "POD",
        "CONTAINER",
        "NODE",
        "DEVICE",
        "MEMORY",
        "CORES",
        "THROTTLED",
        "REFUSED",
    ]
    table = Table(
        ["NAMESPACE", *header] if query.namespace is None else header,
        dispensable=("DEVICE", "THROTTLED", "CLAIM", "REFUSED", "NODE", "CONTAINER"),
    )
    uses = [
        (node, use)
        for node, answer in answers.nodes.items()
        for use in answer["containers"]
        if query.namespace in (None, use["namespace"])
    ]
    for node, use in sorted(uses, key=lambda pair: _rank(query, *pair)):
        limit = use["memory_limit"]
        row: list[Cell] = [
            use["claim"],
            use["pod"],
            use["container"],
            node,
            use["uuid"],
            _memory(use["memory_used"], limit),
            _cores(use["cores_used"], use["cores_limit"]),
            f"{use['throttled_s']:.0f}s",
            str(use["denied"]),
        ]
        table.rows.append([use["namespace"], *row] if query.namespace is None else row)
    return table


def _rank(query: TopQuery, node: str, use: Mapping[str, Any]) -> tuple[float, str, str, str]:
    amounts = {"memory": use["memory_used"], "cores": use["cores_used"] or 0.0, "name": 0.0}
    return -float(amounts[query.sort_by]), use["namespace"], use["claim"], use["uuid"] + node


def _devices(
    query: TopQuery, answers: AgentAnswers, devices: Mapping[str, Mapping[str, Any]]
) -> Table:
    table = Table(
        ["DEVICE", "NODE", "MODEL", "MEMORY", "CORES", "SLICES"],
        dispensable=("MODEL", "SLICES", "NODE"),
    )
    rows: list[tuple[tuple[float, str], list[Cell]]] = []
    for node, answer in answers.nodes.items():
        for uuid, used in answer["devices"].items():
            status = (devices.get(uuid) or {}).get("status") or {}
            size = _capacity_mib(status)
            slices = {c["claim"] for c in answer["containers"] if c["uuid"] == uuid}
            rank = {"memory": used["memory_mib"], "cores": used["cores"], "name": 0.0}
            row: list[Cell] = [
                uuid,
                node,
                status.get("model", ""),
                _memory(used["memory_mib"] * MIB, size * MIB if size else None),
                _cores(used["cores"] / 100, None),
                str(len(slices)),
            ]
            rows.append(((-float(rank[query.sort_by]), uuid), row))
    table.rows = [row for _, row in sorted(rows, key=lambda pair: pair[0])]
    return table


def _capacity_mib(status: Mapping[str, Any]) -> int:
    return read_mib((status.get("capacity") or {}).get("memory", "0"))


def _memory(used: int, limit: int | None) -> Portion:
    mib = -(-used // MIB)
    if limit is None:
        return Portion(f"{mib}Mi")
    return Portion(f"{mib}Mi/{format_mib(limit // MIB)}", used / limit if limit else None)


def _cores(used: float | None, limit: float | None) -> Portion:
    text = "-" if used is None else f"{used * 100:.0f}"
    if limit is None:
        return Portion(f"{text}%", used)
    return Portion(f"{text}/{limit * 100:.0f}%", None if used is None else used / limit)


async def show(
    query: TopQuery,
    once: Callable[[], tuple[Table, Sequence[str]]],
    printer: Printer,
    *,
    every_s: float | None,
) -> None:
    """Print the table. In a terminal, refresh it in place until interrupted.

    Args:
        query: The rows and columns to show.
        once: Returns the current table and a line about each missing node. It runs in a thread, so
            that Ctrl-C does not wait for agents.
        printer: Prints the table.
        every_s: Seconds between two refreshes; None: print once.
    """
    if every_s is None or not printer.is_terminal:
        shown, missing = await asyncio.to_thread(once)
        printer.table(shown, is_whole=query.is_whole)
        for line in missing:
            printer.line(line)
        return
    last = 0
    while True:
        shown, missing = await asyncio.to_thread(once)
        last = printer.redraw(shown, missing, last, is_whole=query.is_whole)
        await asyncio.sleep(every_s)
