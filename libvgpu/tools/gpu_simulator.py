"""Writes the file that makes the simulated driver like the measured device (fake/README.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Which PIDs NVML's list and its samples show in a PID namespace.
_PIDS = {("outer", "outer"): "host", ("own", "outer"): "mixed", ("own", "own"): "own"}
_HUGE = 1 << 62
_MIB = 1 << 20


def machine_file(machine: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the file, as far as the cases that were run determine them."""
    by_case = {row["case"]: row for row in rows}
    found: dict[str, object] = {"driver": machine["driver"]}
    cuda = machine["cuda"]
    found["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    found.update(_memory(by_case.get("memory of contexts and modules", {})))
    found.update(_turns(by_case.get("turns of two processes, 500 us", {})))
    found.update(_samples(by_case.get("NVML's samples of a device that is always busy", {})))
    found.update(_pids(by_case.get("PIDs in a PID namespace", {})))
    return [*(f"{name}={value}" for name, value in found.items()), _card(machine)]


def _card(machine: dict[str, Any]) -> str:
    mig = {None: "none", False: "off", True: "on"}[machine["mig"]]
    words = [f"card uuid={machine['uuid']}", f'model="{machine["device"]}"']
    words += [f"memory_mib={machine['total_bytes'] // _MIB}", f"mig={mig}"]
    if machine["multiprocessors"]:
        words += [f"cc={machine['compute_capability']}", f"sms={machine['multiprocessors']}"]
    return " ".join(words)


def _memory(row: dict[str, Any]) -> dict[str, object]:
    return {"context_mib": row["context_bytes"] // _MIB} if "context_bytes" in row else {}


def _turns(row: dict[str, Any]) -> dict[str, object]:
    if not row.get("turn_of_others_us"):
        return {}
    switch_us = round(row["change_over_us"])
    return {"slice_us": round(row["turn_of_others_us"] - 2 * switch_us), "switch_us": switch_us}


def _samples(row: dict[str, Any]) -> dict[str, object]:
    if not row.get("period_ms"):
        return {}
    return {"sample_ms": round(row["period_ms"]), "nvml_lag_ms": round(row["lag_ms"]["median"])}


def _pids(row: dict[str, Any]) -> dict[str, object]:
    found: dict[str, object] = {}
    speaks = row.get("speaks", {})
    pids = _PIDS.get((speaks.get("compute", ""), speaks.get("samples", "")))
    if pids:
        found["pids"] = pids
    shown = row.get("memory_shown", {}).get("compute")
    if shown is not None:
        found["bytes"] = _bytes(shown)
    return found


def _bytes(shown: Any) -> str:
    if shown == "not available":
        return "unavailable"
    if not shown:
        return "zero"
    return "huge" if shown >= _HUGE else "shown"
