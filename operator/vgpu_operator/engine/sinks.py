"""From the reflectors to the engine: each kind's events become one of its notes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from vgpu_client.reflector import Identity
from vgpu_client.transport import Object

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NoteSink(Generic[T]):
    """Tells `changed` of what is there, and `gone` of what is not.

    An object that cannot be read is told to `ruined`; by default it counts as not there, which is
    right for kinds that hold nothing.
    """

    changed: Callable[[T], object]
    gone: Callable[[Identity], object]
    ruined: Callable[[Identity, Object], object] | None = None

    def added(self, obj: T) -> None:
        """A new object."""
        self.changed(obj)

    def modified(self, obj: T) -> None:
        """A newer version."""
        self.changed(obj)

    def deleted(self, identity: Identity) -> None:
        """It is gone."""
        self.gone(identity)

    def unreadable(self, identity: Identity, raw: Object, error: Exception) -> None:
        """It is there but cannot be read."""
        logger.error("%s %s cannot be read: %s", raw.get("kind"), identity.name, error)
        if self.ruined is not None:
            self.ruined(identity, raw)
        else:
            self.gone(identity)
