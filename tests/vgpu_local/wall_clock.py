"""A time of day that tests can shift, for programs that are started with its environment."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from vgpu_local.programs import ROOT

_SHIFT = "clock-shift"


def a_clock(folder: Path) -> dict[str, str]:
    """Return the environment for a process, and its children, to use this clock.

    Args:
        folder: The folder for the clock's files. The clock shows the true time until it is shifted.
    """
    library, source = folder / "clock_shift.so", ROOT / "tests" / "clock_shift.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    (folder / _SHIFT).write_bytes(struct.pack("=q", 0))
    return {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(folder / _SHIFT)}


def shift_clock(folder: Path, seconds: int) -> None:
    """Shift the clock to this many seconds from the true time, at once."""
    with open(folder / _SHIFT, "r+b") as file:
        file.write(struct.pack("=q", seconds))
