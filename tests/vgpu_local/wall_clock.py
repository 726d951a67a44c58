"""A clock on the wall that can be set, for the programs that are started to go by it."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from vgpu_local.programs import ROOT

_SHIFT = "clock-shift"


def a_clock(folder: Path) -> dict[str, str]:
    """The environment of a process that goes by this clock, and its children with it.

    Args:
        folder: For what it takes; it shows the true time until it is set.
    """
    library, source = folder / "clock_shift.so", ROOT / "tests" / "clock_shift.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    (folder / _SHIFT).write_bytes(struct.pack("=q", 0))
    return {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(folder / _SHIFT)}


def shift_clock(folder: Path, seconds: int) -> None:
    """Set the clock to so many seconds beside the true time, at once."""
    with open(folder / _SHIFT, "r+b") as file:
        file.write(struct.pack("=q", seconds))
