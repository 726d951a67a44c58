"""Figures of a bench with their limits: printed, and written as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def report(
    figures: Mapping[str, float],
    *,
    bars: Mapping[str, float],
    shape: Mapping[str, Any],
    out: Path,
) -> int:
    """Print and write the measurements; return 1 if a figure is above its bar.

    Args:
        figures: The figures by name, each in the unit that ends its name.
        bars: The largest figures that pass.
        shape: The size of the measured cluster.
        out: The file to write; its folder is created.
    """
    shown = {name: round(value, 2) for name, value in figures.items()}
    above = [name for name, bar in bars.items() if figures[name] > bar]
    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
    written = {
        "load_average": os.getloadavg(),
        "figures": shown,
        "bars": bars,
        "above": above,
        "shape": shape,
        "machine": machine,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(written, indent=2) + "\n")
    for name, value in shown.items():
        bar = f"  (bar {bars[name]:g})" if name in bars else ""
        print(f"{name:20} {value:10.2f}{bar}")
    print(f"written to {out}")
    return 1 if above else 0
