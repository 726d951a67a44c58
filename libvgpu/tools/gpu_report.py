"""The report of the check: one table for people, one JSON file for programs.

The file keeps both parts, so that they can run in two calls of ten minutes. `schema` names its
form; a reader that knows another form must not guess.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpu_case import FAILED, PASSED, SIMULATED
from gpu_simulator import machine_file

SCHEMA = "vgpu-gpu-check/1"
TITLES = {"1": "what the driver is like", "2": "what the library makes of it"}
_WIDTH = 64


class Report:
    """The findings so far, written after every row, so that a killed check leaves its results.

    Args:
        path: The JSON file. Parts that an earlier run of the same machine wrote are kept.
        machine: The machine, as gpu_machine describes it.
    """

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        self._path = path
        self.machine = machine
        self.parts: dict[str, Any] = _kept(path, machine)

    def begin(self, part: str) -> None:
        """Forget an earlier run of this part."""
        self.parts[part] = {
            "title": TITLES[part],
            "commit": _commit(),
            "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "complete": False,
            "rows": [],
        }
        self._write()

    def add(self, part: str, row: dict[str, Any]) -> None:
        """Add one row and print it."""
        if self.machine["simulated"] and row["outcome"] == PASSED:
            row = {**row, "outcome": SIMULATED}
        self.parts[part]["rows"].append(row)
        print(line(row), flush=True)
        self._write()

    def end(self, part: str) -> None:
        """Mark a part as complete."""
        self.parts[part]["complete"] = True
        self._write()

    def findings(self) -> dict[str, Any]:
        """Return everything that is written to the file."""
        rows = list(self._rows())
        return {
            "schema": SCHEMA,
            "machine": self.machine,
            "failures": [f"{row['case']}: {row['why']}" for row in rows if is_failure(row)],
            "limits_shown_wrong": limits(rows),
            "calibrations": calibrations(rows),
            "machine_file": machine_file(self.machine, rows),
            "parts": self.parts,
        }

    def _rows(self) -> Iterator[dict[str, Any]]:
        for part in sorted(self.parts):
            yield from self.parts[part]["rows"]

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self.findings(), indent=1) + "\n")
        new.replace(self._path)


def is_failure(row: dict[str, Any]) -> bool:
    """Return True for a row that makes the check fail."""
    return bool(row["outcome"] == FAILED)


def limits(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the rows of docs/limits.md that failed cases break, each with these cases."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for limit in row.get("limits", []) if is_failure(row) else ():
            cases = found.setdefault(limit, [])
            if row["case"] not in cases:
                cases.append(row["case"])
    return found


def calibrations(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every comparison with a constant of the sources, mismatches first."""
    found = [{**one, "case": row["case"]} for row in rows for one in row.get("calibrations", [])]
    return sorted(found, key=lambda one: bool(one["fits"]))


def line(row: dict[str, Any]) -> str:
    """Return the line of one row in the table."""
    return f"{row['case'][:_WIDTH]:{_WIDTH}} {row['outcome']:10} {row['why']}".rstrip()


def summary(findings: dict[str, Any]) -> str:
    """Return the text after the rows: broken promises, and constants that do not fit."""
    lines = [""]
    for limit, cases in findings["limits_shown_wrong"].items():
        lines.append(f"docs/limits.md is wrong here: {limit} ({'; '.join(cases)})")
    for one in findings["calibrations"]:
        if not one["fits"]:
            lines.append(
                f"does not fit: {one['constant']} is {one['is']:g} {one['unit']}, "
                f"measured {one['measured']:g} ({one['case']})"
            )
    count = len(findings["failures"])
    lines.append(f"{count} failure{'' if count == 1 else 's'}")
    if findings["machine"]["simulated"]:
        lines.append("on the simulated driver: this proves the check, and no limit")
    return "\n".join(lines)


def _kept(path: Path, machine: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of an earlier run if it was of this machine and in this form."""
    try:
        old = json.loads(path.read_text())
        same = old["schema"] == SCHEMA and all(
            old["machine"][name] == machine[name] for name in ("uuid", "driver", "simulated")
        )
        parts: dict[str, Any] = old["parts"] if same else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return parts


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=str(Path(__file__).parent),
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
