"""Decides when the leader checks its certificates.

Certificates depend on the time and on Secrets, so the keeper checks them every few seconds. A Kopf
timer on these objects would add a finalizer to each, which nobody removes once the operator is
uninstalled. Watching Secrets would need the right to read all Secrets of the namespace. So Kopf
watches only the webhook configurations: a wrong `caBundle` stops all admission and is repaired
within a second.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, NoReturn, Protocol

import kopf

from vgpu_api.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Resource
from vgpu_client.errors import ClientError

logger = logging.getLogger(__name__)

WATCHED: tuple[Resource, ...] = (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
AGAIN_S = 10.0
PAUSE_S = 1.0
"""The wait after a change or a failure. Another controller may undo each repair at once."""


class Steps(Protocol):
    """The part of the keeper that is used here."""

    async def step(self) -> bool:
        """Take the steps that are due, and return True if there were any.

        Raises:
            ClientError: A read or a write failed.
        """


async def rotate(keeper: Steps, changed: asyncio.Event) -> NoReturn:
    """Take all steps that are due, every 10 s and soon after `changed` is set; never returns."""
    while True:
        changed.clear()
        wait_s = AGAIN_S
        try:
            while await keeper.step():
                pass
        except ClientError as error:
            logger.warning("cannot renew certificates, retrying: %s", error)
            wait_s = PAUSE_S
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await changed.wait()
                await asyncio.sleep(PAUSE_S)


def register(
    registry: kopf.OperatorRegistry, changed: asyncio.Event, leaders: asyncio.AbstractEventLoop
) -> None:
    """Register the handler.

    Args:
        registry: The registry of Kopf, which runs in a thread of its own.
        changed: Set when a webhook configuration changes.
        leaders: The event loop of `changed`.
    """
    for resource in WATCHED:

        @kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)
        async def look(**_: Any) -> None:
            leaders.call_soon_threadsafe(changed.set)
