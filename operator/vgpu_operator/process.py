"""The common part of the entry points: parse arguments, set up logging, run, return a status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol, TypeVar

import uvloop

from vgpu_api.errors import VgpuError
from vgpu_client.logs import LogFormat, configure


class Logged(Protocol):
    """A configuration with the log's format and level."""

    @property
    def log_level(self) -> str:
        """Return the logging level, such as `INFO`."""

    @property
    def log_format(self) -> LogFormat:
        """Text or JSON."""


Config = TypeVar("Config", bound=Logged)


def run_process(
    program: str,
    parse: Callable[[Sequence[str]], Config],
    run: Callable[[Config], Coroutine[None, None, None]],
) -> int:
    """Run one of our programs.

    Returns:
        0 after a requested shutdown, 1 after a failure, 2 if the configuration is invalid.
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
