"""What both entry points do: read arguments, set logging up, run, and return an exit code."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol, TypeVar

from vgpu_api.errors import VgpuError


class Logged(Protocol):
    """A configuration that says how much to log."""

    @property
    def log_level(self) -> str:
        """`INFO` and the like."""


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
    logging.basicConfig(
        level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for chatty in ("aiohttp.access", "kopf.objects"):  # a line for every admission review
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        asyncio.run(run(config))
    except VgpuError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    return 0
