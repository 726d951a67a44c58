"""What both entry points do: read arguments, set logging up, run, and return an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol, TypeVar

import uvloop

from vgpu_api.errors import VgpuError
from vgpu_client.logs import LogFormat, configure


class Logged(Protocol):
    """A configuration with format and level of the log."""

    @property
    def log_level(self) -> str:
        """`INFO` and the like."""

    @property
    def log_format(self) -> LogFormat:
        """Text or JSON."""


Config = TypeVar("Config", bound=Logged)


def run_process(
    program: str,
    parse: Callable[[Sequence[str]], Config],
    run: Callable[[Config], Coroutine[None, None, None]],
) -> int:
    """Run a program of ours.

    Returns:
        0 when it was asked to end, 1 when something failed, 2 for a configuration that is wrong.
    """
    try:
        config = parse(sys.argv[1:])
    except (VgpuError, OSError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    configure(config.log_format, config.log_level)
    try:
        uvloop.run(run(config))
    except VgpuError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    return 0
