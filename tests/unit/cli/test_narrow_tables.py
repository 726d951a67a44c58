"""Tables at 80, 100 and 160 columns, compared with the files in `tables/`.

A cell is never wrapped: bars go first, then the columns that matter least. No line is wider than
the terminal as long as the columns that cannot go fit.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from vgpu_operator.cli import listing, object_tables, top
from vgpu_operator.cli.agents import AgentAnswers
from vgpu_operator.cli.printing import Printer, Table

NOW = datetime(2026, 1, 2, tzinfo=UTC)
BORN = "2026-01-01T00:00:00Z"
FOLDER = Path(__file__).parent / "tables"
WIDTHS = (80, 100, 160)
UUIDS = [f"GPU-4f2c5a3e-0b1d-4c6a-9e8f-00000000000{n}" for n in range(3)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def a_device(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "vgpu.dev/v1alpha1",
        "kind": "GPUDevice",
        "metadata": {"name": UUIDS[number].lower(), "creationTimestamp": BORN},
        "spec": {"nodeName": f"gpu-node-{number // 2}", "cordoned": number == 2},
        "status": {
            "uuid": UUIDS[number],
            "index": number % 2,
            "model": "NVIDIA A100-SXM4-80GB",
            "driverVersion": "570.86.15",
            "numaNode": 0,
            "capacity": {"memory": "80Gi"},
            "allocatable": {"memory": "80Gi", "cores": 100, "slots": 10},
            "allocated": {"memory": "40960Mi", "cores": 25 * number, "slots": number},
            "conditions": [{"type": "Ready", "status": "True", "reason": "Ready"}],
            "claims": [{"namespace": "research", "name": "notebook-3f9a1c2b"}] * bool(number),
        },
    }


def a_claim(number: int) -> dict[str, Any]:
    pod = ("inference-7d9f8b6c5-x2x4p", "training-job-0", "notebook")[number]
    waits = number == 1
    status: dict[str, Any] = {
        "summary": "1 × 8Gi, 50 %",
        "pod": pod,
        "state": "Pending" if waits else "Allocated",
        "conditions": [
            {
                "type": "Allocated",
                "status": "False" if waits else "True",
                "reason": "CardInsufficientMemory" if waits else "Allocated",
                "message": "asked 200,000 MiB; the largest device has 81,920 MiB",
            }
        ],
    }
    if not waits:
        device = {"uuid": UUIDS[0], "memory": "8Gi", "cores": 50, "name": UUIDS[0].lower()}
        status["allocation"] = {"nodeName": "gpu-node-0", "devices": [device]}
    return {
        "apiVersion": "vgpu.dev/v1alpha1",
        "kind": "VGPUClaim",
        "metadata": {
            "name": f"{pod}-3f9a1c2b",
            "namespace": "research",
            "creationTimestamp": BORN,
        },
        "spec": {"requests": [{"name": "gpu", "memory": "8Gi", "cores": 50}]},
        "status": status,
    }


def a_node(number: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"gpu-node-{number}", "creationTimestamp": BORN},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def listed(kind: str, namespace: str | None, output: str = "") -> Table:
    query = listing.GetQuery(kind, namespace=namespace, output=output)
    devices = [a_device(number) for number in range(3)]
    objects = {
        "slices": [a_claim(number) for number in range(3)],
        "devices": devices,
        "nodes": [a_node(number) for number in range(2)],
    }[kind]
    return object_tables.table(query, objects, devices, NOW)


def used(kind: str, namespace: str | None) -> Table:
    containers = [
        {
            "namespace": "research",
            "claim": f"{pod}-3f9a1c2b",
            "pod": pod,
            "container": "main",
            "uuid": UUIDS[number],
            "memory_used": 3_000_000_000 * (number + 1),
            "memory_limit": 8 << 30,
            "cores_used": 0.41,
            "cores_limit": 0.5,
            "throttled_s": 12.0,
            "denied": number,
        }
        for number, pod in enumerate(("inference-7d9f8b6c5-x2x4p", "notebook"))
    ]
    devices = {uuid: {"memory_mib": 2861, "cores": 41} for uuid in UUIDS[:2]}
    answers = AgentAnswers({"gpu-node-0": {"containers": containers, "devices": devices}})
    known = {UUIDS[n]: a_device(n) for n in range(2)}
    return top.table(top.TopQuery(kind, namespace), answers, known)


TABLES: dict[str, Callable[[], Table]] = {
    "get-slices": lambda: listed("slices", "research"),
    "get-slices-everywhere": lambda: listed("slices", None),
    "get-devices": lambda: listed("devices", None),
    "get-nodes": lambda: listed("nodes", None),
    "top-slices": lambda: used("slices", "research"),
    "top-slices-everywhere": lambda: used("slices", None),
    "top-devices": lambda: used("devices", None),
}


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")


def shown(table: Table, width: int, monkeypatch: pytest.MonkeyPatch, **how: bool) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    out = Terminal()
    Printer(out).table(table, **how)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_a_table_looks_as_recorded(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(TABLES[name](), width, monkeypatch)
    assert lines == (FOLDER / f"{name}-{width}.txt").read_text().splitlines()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_a_row_is_one_line_that_fits(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TABLES[name]()
    lines = shown(table, width, monkeypatch)
    note = [line for line in lines if line.startswith("(")]
    assert len(lines) == 1 + len(table.rows) + len(note)
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("name", TABLES)
def test_a_cell_is_whole_at_any_width(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TABLES[name]()
    lines = shown(table, 20, monkeypatch)
    for row, line in zip(table.rows, lines[1:], strict=False):
        cells = {cell if isinstance(cell, str) else cell.text for cell in row}
        assert set(re.split(r"\s{2,}", line)) <= cells | {"-"}


def test_a_column_that_went_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    table = TABLES["get-devices"]()
    *lines, note = shown(table, 80, monkeypatch)
    there = re.split(r"\s{2,}", lines[0])
    assert set(table.header) - set(there) == set(
        note.removeprefix("(columns not shown: ").split(";")[0].split(", ")
    )


@pytest.mark.parametrize("name", TABLES)
def test_wide_shows_all_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TABLES[name]()
    lines = shown(table, 80, monkeypatch, is_whole=True)
    assert re.split(r"\s{3,}", lines[0]) == list(table.header)


def test_rows_that_continue_a_table_have_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    out = Terminal()
    printer = Printer(out)

    def rows(*cells: Sequence[str]) -> Table:
        return Table(["NAME", "MODEL", "AGE"], list(cells), dispensable=("MODEL",))

    printer.table(rows(["a", "a model of many words and more", "1s"]))
    printer.table(rows(["b", "short", "2s"]), header=False)
    assert out.getvalue().splitlines()[-1].split() == ["b", "2s"]


def test_a_live_table_is_drawn_over_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    out = Terminal()
    printer = Printer(out)
    last = printer.redraw(Table(["NAME"], [["a"], ["b"]]), ["node-1: not asked"], 0, is_whole=False)
    assert last == 4
    printer.redraw(Table(["NAME"], [["a"]]), [], last, is_whole=False)
    assert out.getvalue().split("\x1b[4A\r\x1b[J")[1] == "NAME\na\n"


def test_a_live_table_that_is_longer_than_the_screen_ends_with_a_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "10")
    out = Terminal()
    rows: list[Sequence[str]] = [[f"n{number}"] for number in range(50)]
    height = Printer(out).redraw(Table(["NAME"], [*rows]), [], 0, is_whole=False)
    assert height == len(out.getvalue().splitlines()) <= 9
    assert out.getvalue().splitlines()[-1] == "and 43 more lines"
