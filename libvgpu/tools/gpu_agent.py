"""Runs the agent's own code where only the agent acts: pages, regions and host PIDs.

It needs none of the agent's dependencies, so a bare checkout can run it with the system's Python,
from 3.10 on.
"""

from __future__ import annotations

import enum
import importlib
import sys
from pathlib import Path
from typing import Any

from gpu_case import NotRun

SOURCES = Path(__file__).resolve().parents[2]
NEEDED = (3, 10)
_PACKAGE = "vgpu_nodeagent.enforcement"


class _StrEnum(str, enum.Enum):  # noqa: UP042
    """`enum.StrEnum` for Python 3.10, which does not have it."""

    def __str__(self) -> str:
        return str(self.value)


class Agent:
    """The modules of the agent that write into shared files.

    Raises:
        NotRun: This Python is too old for them.
    """

    def __init__(self) -> None:
        if sys.version_info < NEEDED:
            raise NotRun(f"the agent's code needs Python {NEEDED[0]}.{NEEDED[1]}")
        if not hasattr(enum, "StrEnum"):  # of Python 3.11; the agent itself has it
            setattr(enum, "StrEnum", _StrEnum)  # noqa: B010
        for folder in ("nodeagent", "crds"):
            if str(SOURCES / folder) not in sys.path:
                sys.path.append(str(SOURCES / folder))
        self._page: Any = importlib.import_module(f"{_PACKAGE}.page")
        self._region: Any = importlib.import_module(f"{_PACKAGE}.region")
        self._host_pids: Any = importlib.import_module(f"{_PACKAGE}.host_pids")

    def make_page(self, path: Path, name: str) -> None:
        """Create a page that denies everything."""
        self._page.create_page(path, name=name)

    def grant(
        self, path: Path, name: str, uuid: str, memory_bytes: int, cores: int, policy: str
    ) -> None:
        """Grant a device with these limits; `policy` is DEFAULT, FORCE or DISABLE."""
        rule = self._page.CorePolicy[policy]
        limit = self._page.DeviceLimit(uuid, memory_bytes, cores, rule)
        self._page.grant(path, [limit], name=name)

    def make_region(self, path: Path) -> None:
        """Create an empty usage region."""
        self._region.create_region(path)

    def read_region(self, path: Path) -> tuple[Any, ...]:
        """Return the recorded usage of each device."""
        found: tuple[Any, ...] = self._region.read_region(path)
        return found

    def write_host_pids(self, path: Path, pids: list[int]) -> int:
        """Write the PIDs that these processes have here into a region.

        Return the number of PIDs.
        """
        count: int = self._host_pids.write_host_pids(path, pids)
        return count
